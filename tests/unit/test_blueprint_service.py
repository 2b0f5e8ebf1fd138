"""The blueprint service: all or nothing, one owner for each slice, no circles, history, and rollback to any of it."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest
from blueprint_scene import SaidArtifacts, blueprint, changed, spec
from environment import env_on
from service_scene import ADMIN, MEMBER_OF_ACME, STRANGER, VIEWER, Scene, asked, contents, play

from hostler.engine.deployments import queries
from hostler.engine.deployments.instance_index import InstanceState
from hostler.engine.deployments.service import BlueprintService
from hostler.engine.request import Caller
from hostler.errors import Conflict, Forbidden, HostlerError, Invalid, KeyReused, NotFound, Stale
from hostler.keys.families import (
    BLUEPRINT,
    BLUEPRINT_HISTORY,
    DEPLOYMENT,
    ENDPOINT,
    RETRIES,
    SLICE,
    SLICE_DECISION,
    SLICE_OWNER,
)
from hostler.model.access import ROLES, Role
from hostler.model.blueprint_api import BlueprintPhase, SliceChange
from hostler.model.deployment import Endpoint, SliceInstance, SliceRecord, SliceSettings, SliceState, Strategy
from hostler.model.node import Lifecycle
from hostler.model.rollout import Deployment, Phase, Retries, SliceDecision, SliceOwner
from hostler.model.trace import Reason

if TYPE_CHECKING:
    from hostler.model.blueprint_api import BlueprintView
    from hostler.ports.store import Put

MEMBER_OF_ALL = Caller("mia", ROLES[Role.MEMBER], ("*",), source="10.0.0.9")
VIEWER_OF_ALL = Caller("vera", ROLES[Role.VIEWER], ("*",))
DB, API, WEB = spec("db:1"), spec("api:1", 2, "db"), spec("web:1", 1, "api")


def service(scene: Scene, *lacks: str) -> BlueprintService:
    return BlueprintService(
        scene.store, scene.writer, scene.view, SaidArtifacts(*lacks), env_on(scene.clock, random.Random(3))
    )


async def applied(scene: Scene, name: str, *slices: Any, **more: Any) -> BlueprintView:
    done = await service(scene).apply(asked(ADMIN, **more), name, blueprint(*slices))
    await scene.settle()
    return done.value


async def owners(scene: Scene) -> dict[str, tuple[str, int]]:
    found = (await SLICE_OWNER.list(scene.raw)).entries
    return {entry.parts["base"]: (entry.value.blueprint, entry.value.number) for entry in found}


async def written(scene: Scene, put: Put) -> None:
    await scene.raw.put(put.key, put.value)
    await scene.settle()


async def nothing_written(scene: Scene, doing: Any, kind: type[HostlerError], said: str) -> None:
    before = await contents(scene.raw, ""), (await scene.raw.status()).revision
    with pytest.raises(kind, match=said):
        await doing
    assert (await contents(scene.raw, ""), (await scene.raw.status()).revision) == before


def test_an_apply_writes_blueprint_history_and_owners_at_once_and_the_same_again_nothing() -> None:
    async def story(scene: Scene) -> None:
        done = await service(scene).apply(asked(ADMIN), "Shop", blueprint(API, DB))
        view = done.value
        assert (done.status, view.name, view.number, view.revision) == (201, "shop", 1, done.revision)
        assert (view.phase, view.instances, view.ready) == (BlueprintPhase.CHANGING, 3, 0)
        stored = await BLUEPRINT.get(scene.raw, blueprint="shop")
        history = await BLUEPRINT_HISTORY.get(scene.raw, blueprint="shop", number=1)
        assert stored is not None
        assert history is not None
        assert stored.value == history.value.blueprint == blueprint(API, DB)
        assert stored.mod_revision == history.mod_revision == done.revision
        assert await owners(scene) == {"org:api": ("shop", 1), "org:db": ("shop", 1)}
        assert (history.value.by, history.value.rollback_to, history.value.deleted) == ("ada", 0, False)
        before = (await scene.raw.status()).revision
        again = await service(scene).apply(asked(ADMIN), "shop", blueprint(API, DB))
        assert (again.status, again.value.number, again.revision) == (200, 1, done.revision)
        assert (await scene.raw.status()).revision == before
        more = await applied(scene, "shop", changed(API, instances=5), DB)
        assert more.number == 2
        assert set((await owners(scene)).values()) == {("shop", 2)}
        assert [audit.verb for audit in await scene.audits()] == ["blueprint.apply"] * 2

    play(story)


def test_what_is_refused_writes_nothing_and_names_its_place() -> None:
    async def story(scene: Scene) -> None:
        await applied(scene, "base", DB)
        lacking = service(scene, "org:api:1", "org:web:1")
        wanted = blueprint(changed(DB, artifact="org:x:1"), API, WEB)
        await nothing_written(
            scene,
            lacking.apply(asked(ADMIN), "shop", wanted),
            NotFound,
            r"blueprint shop: slices\[1\].artifact: org:api:1 is not in the repository; publish it: hostler slice push",
        )
        await nothing_written(
            scene,
            service(scene).apply(asked(ADMIN), "shop", blueprint(API, spec("db:2"))),
            Conflict,
            r"blueprint shop: slices\[1\].artifact: org:db is a slice of blueprint base; remove it there",
        )
        await nothing_written(
            scene,
            service(scene).apply(asked(ADMIN), "shop", blueprint(WEB)),
            Invalid,
            r"blueprint shop: slices\[0\].needs\[0\]: org:api: no blueprint has such a slice",
        )
        await nothing_written(
            scene,
            service(scene).apply(asked(ADMIN), "shop", blueprint(changed(API, min_available=9))),
            Invalid,
            r"blueprint shop: slices\[0\].min_available: 9 is more than instances",
        )
        await nothing_written(
            scene, service(scene).apply(asked(ADMIN), "no/name", blueprint(DB)), Invalid, "its name must be"
        )
        await nothing_written(
            scene, service(scene).apply(asked(VIEWER), "shop", blueprint(API)), Forbidden, "modify_workloads"
        )
        hidden = changed(DB, settings=SliceSettings(environment={"KEY": "…"}))
        await nothing_written(
            scene,
            service(scene).apply(asked(ADMIN), "base", blueprint(hidden)),
            Invalid,
            r"slices\[0\].settings.environment.KEY: … replaces a value that was not shown",
        )

    play(story)


def test_who_belongs_to_a_project_changes_nothing_that_runs_on_every_node() -> None:
    """Else each member of a project could run any program on all nodes, and take away what others run."""

    async def story(scene: Scene) -> None:
        mine = service(scene)
        await applied(scene, "base", DB)
        await applied(scene, "base", spec("db:2"))
        for caller in (MEMBER_OF_ACME, STRANGER, Caller("stu", ROLES[Role.MEMBER], ("labs/stu",))):
            for doing in (
                mine.apply(asked(caller), "base", blueprint(DB)),
                mine.rollback(asked(caller), "base"),
                mine.delete(asked(caller), "base"),
                mine.plan(caller, "base", blueprint(DB)),
            ):
                said = (
                    r"slices run on every node: that takes modify_workloads and membership in \*; ask an administrator"
                )
                await nothing_written(scene, doing, Forbidden, said)
        assert (await mine.apply(asked(MEMBER_OF_ALL), "base", blueprint(DB))).status == 200

    play(story)


def test_who_may_not_deploy_sees_neither_values_of_environments_nor_what_slices_printed() -> None:
    async def story(scene: Scene) -> None:
        mine = service(scene)
        await applied(scene, "base", changed(DB, settings=SliceSettings(environment={"KEY": "s3cret", "EMPTY": ""})))
        why = "it ended with 3, its last words: s3cret; and more"
        await written(scene, RETRIES.put(Retries(failures=2, why=why), artifact="org:db:1"))
        failed = SliceInstance(state=SliceState.FAILED, why=why)
        record = SliceRecord(state=SliceState.FAILED, timestamp=1, instances={1: failed})
        await written(scene, SLICE.put(record, node="n1", artifact="org:db:1"))
        deployment = Deployment(
            blueprint="base", number=1, artifact="org:db:1", phase=Phase.FAILED, why=why, started_at=0, changed_at=0
        )
        await written(scene, DEPLOYMENT.put(deployment, base="org:db"))

        async def told(caller: Caller) -> list[str]:
            found = (
                *(await mine.get(caller, "base"), await mine.list(caller), await mine.list(caller, stale=True)),
                *(await mine.revision(caller, "base", 1), await mine.status(caller, "base")),
                *(await mine.slices(caller), await mine.slices(caller, artifact="org:db")),
            )
            return [one.encode().decode() for one in found]

        assert all("s3cret" in one for one in await told(MEMBER_OF_ALL))
        for caller in (MEMBER_OF_ACME, VIEWER, VIEWER_OF_ALL):
            texts = await told(caller)
            assert not [one for one in texts if "s3cret" in one or "last words" in one]
            assert '"environment":{"KEY":"…","EMPTY":"…"}' in texts[0]
            assert "it ended with 3" in texts[4]

    play(story)


def test_only_artifacts_that_are_new_to_it_are_looked_for() -> None:
    async def story(scene: Scene) -> None:
        artifacts = SaidArtifacts()
        mine = BlueprintService(scene.store, scene.writer, scene.view, artifacts, env_on(scene.clock))
        await mine.apply(asked(ADMIN), "shop", blueprint(DB, API))
        artifacts.lacks.add("org:db:1")
        await mine.apply(asked(ADMIN), "shop", blueprint(DB, changed(API, artifact="org:api:2")))
        assert sorted(artifacts.asked[:2]) == ["org:api:1", "org:db:1"]
        assert artifacts.asked[2:] == ["org:api:2"]

    play(story)


def test_circles_through_other_blueprints_are_refused() -> None:
    async def story(scene: Scene) -> None:
        await applied(scene, "base", DB)
        await applied(scene, "middle", API)
        await applied(scene, "top", WEB)
        await nothing_written(
            scene,
            service(scene).apply(asked(ADMIN), "base", blueprint(spec("db:1", 1, "web"))),
            Invalid,
            r"slices\[0\].needs\[0\]: circular dependency: org:db → org:web → org:api → org:db",
        )

    play(story)


def test_two_that_would_make_a_circle_together_do_not_both_pass() -> None:
    """Three that need each other in a circle, at once, on a store that answers when it likes."""
    refused = 0
    for seed in range(40):

        async def story(scene: Scene) -> int:
            for name in ("a", "b", "c"):
                await applied(scene, name, spec(f"{name}:1"))
            scene.store.faults.slow, scene.store.faults.slowest = 0.7, 0.02
            others = {"a": "b", "b": "c", "c": "a"}
            found = await asyncio.gather(
                *(
                    service(scene).apply(asked(ADMIN), name, blueprint(spec(f"{name}:1", 1, needs)))
                    for name, needs in others.items()
                ),
                return_exceptions=True,
            )
            assert all(not isinstance(one, Exception) or isinstance(one, Invalid | Conflict) for one in found), found
            needs = {
                entry.parts["blueprint"]: entry.value.slices[0].needs
                for entry in (await BLUEPRINT.list(scene.raw)).entries
            }
            assert sum(bool(need) for need in needs.values()) == 2, needs
            return sum(isinstance(one, Exception) for one in found)

        refused += play(story, seed=seed)
    assert refused == 40


def test_a_slice_that_is_needed_elsewhere_is_neither_left_out_nor_deleted() -> None:
    async def story(scene: Scene) -> None:
        await applied(scene, "base", DB, spec("cache:1"))
        await applied(scene, "middle", API)
        said = "blueprint base: org:db is needed by org:api of blueprint middle; change that first"
        await nothing_written(scene, service(scene).delete(asked(ADMIN), "base"), Conflict, said)
        await nothing_written(
            scene, service(scene).apply(asked(ADMIN), "base", blueprint(spec("cache:1"))), Conflict, said
        )
        await applied(scene, "base", DB)
        await service(scene).delete(asked(ADMIN), "middle")
        await service(scene).delete(asked(ADMIN), "base")
        assert not (await BLUEPRINT.list(scene.raw)).entries

    play(story)


def test_what_is_deleted_while_another_comes_to_need_it_is_one_or_the_other() -> None:
    outcomes = set()
    for seed in range(30):

        async def story(scene: Scene) -> tuple[bool, bool]:
            await applied(scene, "base", DB)
            scene.store.faults.slow, scene.store.faults.slowest = 0.7, 0.02
            gone, made = await asyncio.gather(
                service(scene).delete(asked(ADMIN), "base"),
                service(scene).apply(asked(ADMIN), "middle", blueprint(API)),
                return_exceptions=True,
            )
            there = {entry.parts["blueprint"] for entry in (await BLUEPRINT.list(scene.raw)).entries}
            assert there in (set(), {"base", "middle"}), there
            return isinstance(gone, Exception), isinstance(made, Exception)

        outcomes.add(play(story, seed=seed))
    assert outcomes == {(True, False), (False, True)}


def test_two_that_want_the_same_slice_do_not_both_get_it_and_writers_of_one_blueprint_queue() -> None:
    async def story(scene: Scene) -> None:
        found = await asyncio.gather(
            *(service(scene).apply(asked(ADMIN), name, blueprint(DB)) for name in ("a", "b")), return_exceptions=True
        )
        assert sorted(type(one).__name__ for one in found) == ["Conflict", "Written"]
        name = "a" if isinstance(found[1], Exception) else "b"
        wanted = [blueprint(changed(DB, instances=number)) for number in (2, 3)]
        both = await asyncio.gather(*(service(scene).apply(asked(ADMIN), name, one) for one in wanted))
        assert sorted(one.value.number for one in both) == [2, 3]
        last = max(both, key=lambda one: one.value.number).value
        now = await service(scene).get(VIEWER, name)
        assert (now.slices, now.number, now.revision) == (last.slices, 3, last.revision)

    play(story)


def test_if_match_and_idempotency() -> None:
    async def story(scene: Scene) -> None:
        await nothing_written(
            scene, service(scene).apply(asked(ADMIN, if_match=7), "shop", blueprint(DB)), Stale, "the present one, 0"
        )
        first = await applied(scene, "shop", DB, if_match=0)
        for doing in (
            service(scene).apply(asked(ADMIN, if_match=0), "shop", blueprint(API, DB)),
            service(scene).delete(asked(ADMIN, if_match=first.revision - 1), "shop"),
            service(scene).rollback(asked(ADMIN, if_match=first.revision - 1), "shop", 1),
        ):
            await nothing_written(scene, doing, Stale, "read it again")
        request = {"key": "k1", "fingerprint": "f"}
        one = await service(scene).apply(asked(ADMIN, **request), "shop", blueprint(API, DB))
        await applied(scene, "shop", DB)
        again = await service(scene).apply(asked(ADMIN, **request), "shop", blueprint(API, DB))
        assert (again.replayed, again.value, again.status) == (True, one.value, one.status)
        assert (await service(scene).get(ADMIN, "shop")).number == 3, "it was not done twice"
        with pytest.raises(KeyReused):
            await service(scene).delete(asked(ADMIN, key="k1", fingerprint="g"), "shop")
        same = await service(scene).apply(asked(ADMIN, key="k2", fingerprint="h"), "shop", blueprint(DB))
        assert (same.status, same.value.number) == (200, 3)
        gone = await service(scene).delete(asked(ADMIN, key="k3", fingerprint="i"), "shop")
        assert (await service(scene).delete(asked(ADMIN, key="k3", fingerprint="i"), "shop")).value == gone.value

    play(story)


def test_a_lost_answer_is_found_again() -> None:
    async def story(scene: Scene) -> None:
        scene.store.script("txn", "lost", prefix=BLUEPRINT.prefix())
        view = await applied(scene, "shop", DB, key="k", fingerprint="f")
        scene.store.script("txn", "lost", prefix=BLUEPRINT.prefix())
        more = await applied(scene, "shop", changed(DB, instances=2))
        assert (view.number, more.number) == (1, 2)
        assert len((await BLUEPRINT_HISTORY.list(scene.raw)).entries) == 2

    play(story)


def test_history_and_rollback_to_any() -> None:
    async def story(scene: Scene) -> None:
        mine = service(scene)
        for version in (1, 2, 3):
            await applied(scene, "shop", spec(f"db:{version}"))
        back = await mine.rollback(asked(ADMIN), "shop")
        assert (back.value.number, back.value.slices[0].artifact) == (4, "org:db:2")
        back = await mine.rollback(asked(MEMBER_OF_ALL), "shop", 1)
        assert (back.value.number, back.value.slices[0].artifact) == (5, "org:db:1")
        same = await mine.rollback(asked(ADMIN), "shop", 5)
        assert same.value.number == 5, "it is so already"
        with pytest.raises(NotFound, match=r"revision 9 not found; revisions 1 to 5 are kept"):
            await mine.rollback(asked(ADMIN), "shop", 9)
        page = await mine.history(VIEWER, "shop", limit=2)
        assert [(one.number, one.by, one.rollback_to, one.current) for one in page.items] == [
            (5, "mia", 1, True),
            (4, "ada", 2, False),
        ]
        rest = await mine.history(VIEWER, "shop", after=page.after)
        assert [one.artifacts for one in rest.items] == [{"org:db:3": 1}, {"org:db:2": 1}, {"org:db:1": 1}]
        assert rest.after is None
        assert (await mine.revision(VIEWER, "shop", 3)).slices == (spec("db:3"),)
        with pytest.raises(NotFound, match="nothing was ever applied"):
            await mine.history(VIEWER, "else")
        await applied(scene, "single", spec("only:1"))
        with pytest.raises(NotFound, match="there is nothing to roll back to"):
            await mine.rollback(asked(ADMIN), "single")

    play(story)


def test_one_that_was_deleted_is_brought_back_with_its_numbers_going_on() -> None:
    async def story(scene: Scene) -> None:
        await applied(scene, "shop", DB)
        gone = await service(scene).delete(asked(ADMIN), "shop")
        assert (gone.status, gone.value.phase) == (202, BlueprintPhase.REMOVING)
        await scene.settle()
        assert await owners(scene) == {"org:db": ("shop", 1)}, "until the leader has taken all of it away"
        with pytest.raises(NotFound):
            await service(scene).get(VIEWER, "shop")
        with pytest.raises(NotFound):
            await service(scene).delete(asked(ADMIN), "shop")
        status = await service(scene).status(VIEWER, "shop")
        assert (status.phase, [one.base for one in status.slices]) == (BlueprintPhase.REMOVING, ["org:db"])
        with pytest.raises(Conflict, match="org:db is a slice of blueprint shop"):
            await service(scene).apply(asked(ADMIN), "else", blueprint(DB))
        back = await service(scene).rollback(asked(ADMIN), "shop")
        assert (back.status, back.value.number, back.value.slices) == (201, 3, (DB,))
        [third, second, first] = (await service(scene).history(VIEWER, "shop")).items
        assert (first.deleted, second.deleted, third.deleted, third.rollback_to) == (False, True, False, 2)
        await service(scene).delete(asked(ADMIN), "shop")
        await scene.raw.delete(SLICE_OWNER.fill(base="org:db"))
        await scene.settle()
        with pytest.raises(NotFound):
            await service(scene).status(VIEWER, "shop")
        assert (await applied(scene, "else", DB)).number == 1
        assert (await service(scene).history(VIEWER, "shop")).items[0].number == 4

    play(story)


def test_history_is_kept_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "KEPT", 3)

    async def story(scene: Scene) -> None:
        for number in range(1, 7):
            await applied(scene, "shop", changed(DB, instances=number))
        assert [one.number for one in (await service(scene).history(VIEWER, "shop")).items] == [6, 5, 4]

    play(story)


def test_a_version_that_was_given_up_is_tried_again_by_the_same_file() -> None:
    async def story(scene: Scene) -> None:
        await applied(scene, "shop", DB)
        failed = Deployment(
            blueprint="shop",
            number=1,
            artifact="org:db:1",
            phase=Phase.FAILED,
            started_at=1.0,
            changed_at=1.0,
            why="no",
        )
        await written(scene, DEPLOYMENT.put(failed, base="org:db"))
        assert (await service(scene).get(VIEWER, "shop")).phase is BlueprintPhase.FAILED
        plan = await service(scene).plan(ADMIN, "shop", blueprint(DB))
        assert plan.changes
        assert plan.notes == ("org:db: org:db:1 was given up, and would be tried again",)
        again = await applied(scene, "shop", DB)
        assert (again.number, again.phase) == (2, BlueprintPhase.CHANGING)

    play(story)


def test_a_blueprint_of_a_hundred_slices_is_one_transaction_and_too_much_at_once_is_refused() -> None:
    async def story(scene: Scene) -> None:
        many = [spec(f"s{number}:1") for number in range(100)]
        await applied(scene, "many", *many, key="k", fingerprint="f")
        await applied(scene, "many", *(changed(one, instances=2) for one in many), key="l", fingerprint="f")
        others = [spec(f"t{number}:1") for number in range(60)]
        await nothing_written(
            scene,
            service(scene).apply(asked(ADMIN), "many", blueprint(*many[:40], *others)),
            Invalid,
            "too many slices are added, removed or needed",
        )
        await applied(scene, "many", *many[:40])
        await service(scene).delete(asked(ADMIN, key="m", fingerprint="f"), "many")

    play(story)


def test_a_plan_has_no_more_than_nodes_take_and_tells_where_memory_may_be_short() -> None:
    async def story(scene: Scene) -> None:
        for number in (1, 2, 3):
            await scene.node(f"n{number}")
        await scene.node("n4", lifecycle=Lifecycle.DRAINING)
        many = changed(spec("a:1", 20_000), settings=SliceSettings(memory_mib=16))
        plan = await service(scene).plan(ADMIN, "shop", blueprint(many))
        (one,) = plan.slices
        assert sum(place.instances for place in one.load) == 5_000
        assert (one.to_load, one.waiting) == (15_000, 5_000)
        assert [reason.why for reason in one.passed_over] == ["no node gets more than 5,000 instances of one slice"]
        assert plan.notes == (
            "org:a: n1 would get 1,667 instances of up to 16 MiB, and has 8,192 MiB of memory in total;"
            " the same holds for 2 more nodes",
        )
        few = changed(many, instances=3 * 512)
        assert (await service(scene).plan(ADMIN, "shop", blueprint(few))).notes == ()

    play(story)


# Looking


async def runs(scene: Scene, node: str, artifact: str, *states: SliceState) -> None:
    instances = {number: SliceInstance(state=state) for number, state in enumerate(states, 1)}
    record = SliceRecord(state=states[0], timestamp=5, instances=instances)
    await written(scene, SLICE.put(record, node=node, artifact=f"org:{artifact}"))


def test_the_plan_tells_what_comes_goes_and_moves_and_writes_nothing() -> None:
    async def story(scene: Scene) -> None:
        for number in (1, 2, 3):
            await scene.node(f"n{number}")
        await scene.node("n4", lifecycle=Lifecycle.DRAINING)
        await applied(scene, "shop", spec("a:1", 2), spec("b:1", 1))
        await runs(scene, "n1", "a:1", SliceState.ACTIVE)
        await runs(scene, "n4", "a:1", SliceState.ACTIVE)
        await runs(scene, "n2", "b:1", SliceState.ACTIVE)
        before = await contents(scene.raw, "")
        lone = changed(spec("c:1", 2), node_labels={"disk": "ssd"})
        plan = await service(scene).plan(ADMIN, "shop", blueprint(spec("a:2", 2), spec("d:1", 2), lone))
        assert plan.refused == ()
        a, d, c, b = plan.slices
        assert [one.what for one in (a, d, c, b)] == [
            *(SliceChange.UPGRADE, SliceChange.ADD, SliceChange.ADD, SliceChange.REMOVE),
        ]
        assert sum(one.instances for one in a.load) == 2
        assert "n4" not in {one.node for one in (*a.load, *d.load)}
        assert {one.node for one in a.unload} == {"n1", "n4"}
        assert any(move.source == "n4" for move in a.move)
        assert len({one.node for one in d.load}) == 2
        assert (c.load, c.waiting) == ((), 2)
        assert any("disk=ssd" in reason.why for reason in c.passed_over)
        assert any("drained" in reason.why for reason in c.passed_over)
        assert [one.node for one in b.unload] == ["n2"]
        assert await contents(scene.raw, "") == before
        stands = await service(scene).get(ADMIN, "shop")
        assert plan.revision == stands.revision
        again = await service(scene).plan(ADMIN, "shop", blueprint(spec("a:2", 2), spec("d:1", 2), lone))
        assert again == plan, "a plan leaves nothing behind that the next would reckon with"
        same = await service(scene).plan(ADMIN, "shop", blueprint(*stands.slices))
        assert not same.changes
        new = await service(scene, "org:z:1").plan(ADMIN, "new", blueprint(spec("z:1")))
        assert (new.revision, len(new.refused), new.changes) == (0, 1, True)
        assert "org:z:1 is not in the repository" in new.refused[0]

    play(story)


def test_slices_of_one_plan_reckon_with_each_other() -> None:
    async def story(scene: Scene) -> None:
        for number in (1, 2, 3):
            await scene.node(f"n{number}")
        plan = await service(scene).plan(ADMIN, "shop", blueprint(spec("a:1"), spec("b:1"), spec("c:1")))
        assert sorted(one.node for each in plan.slices for one in each.load) == ["n1", "n2", "n3"]

    play(story)


def test_status_from_the_first_command_to_ready() -> None:
    async def story(scene: Scene) -> None:
        await scene.node("n1")
        await applied(scene, "shop", spec("a:1", 2, "b"), spec("b:1"))
        now = await service(scene).status(VIEWER, "shop")
        assert (now.phase, now.number, now.slices[0].detail) == (
            *(BlueprintPhase.CHANGING, 1, "not processed by the leader yet"),
        )
        for base in ("a", "b"):
            record = Deployment(
                blueprint="shop", number=1, artifact=f"org:{base}:1", phase=Phase.DONE, started_at=1.0, changed_at=1.0
            )
            await written(scene, DEPLOYMENT.put(record, base=f"org:{base}"))
        await runs(scene, "n1", "a:1", SliceState.LOADED)
        reasons = (Reason(subject="n2", why="it is silent"),)
        decision = SliceDecision(chosen=(), passed_over=reasons, waiting=1, at=1.0)
        await written(scene, SLICE_DECISION.put(decision, artifact="org:a:1"))
        a = (await service(scene).status(VIEWER, "shop")).slices[0]
        assert a.phase is BlueprintPhase.WAITING
        assert a.detail == ("1 instance has no node (n2: it is silent); it needs org:b, which has no active instance")
        assert a.reasons == reasons
        await runs(scene, "n1", "a:1", SliceState.ACTIVE, SliceState.ACTIVE)
        await runs(scene, "n1", "b:1", SliceState.ACTIVE)
        ready = await service(scene).status(VIEWER, "shop")
        assert (ready.phase, ready.settled) == (BlueprintPhase.READY, True)
        [listed] = (await service(scene).list(VIEWER)).items
        assert (listed.phase, listed.ready, listed.instances, listed.number) == (BlueprintPhase.READY, 3, 3, 1)
        assert (await service(scene).list(VIEWER, stale=True)).items == (listed,)
        assert (await service(scene).status(VIEWER, "shop", stale=True)) == ready
        await applied(scene, "shop", spec("b:1"))
        less = await service(scene).status(VIEWER, "shop")
        assert [(one.base, one.phase) for one in less.slices] == [
            ("org:b", BlueprintPhase.READY),
            ("org:a", BlueprintPhase.REMOVING),
        ]
        assert not less.settled

    play(story)


def test_instances_of_every_state_are_counted() -> None:
    async def story(scene: Scene) -> None:
        await scene.node("n1")
        await applied(scene, "shop", spec("a:1", 20))
        each = {number: SliceInstance(state=state) for number, state in enumerate(SliceState, 1)}
        more = {20: SliceInstance(state=SliceState.ACTIVE, ready=False)}
        record = SliceRecord(state=SliceState.ACTIVE, timestamp=5, instances=each | more)
        await written(scene, SLICE.put(record, node="n1", artifact="org:a:1"))
        [a] = (await service(scene).status(VIEWER, "shop")).slices
        assert a.versions[0].states == {state.value: 1 + (state is SliceState.ACTIVE) for state in SliceState}
        assert (a.ready, a.leaving, a.failed) == (1, 4, 1)
        for kind in InstanceState:
            assert kind in queries._STATES or kind.name in SliceState.__members__, "whatever the fleet tells apart"

    play(story)


def test_lists_come_in_pages() -> None:
    async def story(scene: Scene) -> None:
        for name in ("a", "b", "c"):
            await applied(scene, name, spec(f"{name}:1"))
            await runs(scene, "n1", f"{name}:1", SliceState.ACTIVE, SliceState.FAILED)
            await runs(scene, "n2", f"{name}:1", SliceState.LOADING)
            endpoint = Endpoint(node_id="n1", instance=1, state=SliceState.ACTIVE, address="h:1", idempotent=True)
            put = ENDPOINT.put(endpoint, artifact=f"org:{name}:1", method="sum", instance=1)
            await written(scene, put)
        mine = service(scene)
        for stale in (False, True):
            first = await mine.list(VIEWER, limit=2, stale=stale)
            last = await mine.list(VIEWER, limit=2, after=first.after, stale=stale)
            assert [one.name for one in (*first.items, *last.items)] == ["a", "b", "c"]
            assert last.after is None
        found, after = [], None
        while True:
            page = await mine.slices(VIEWER, limit=4, after=after)
            found += page.items
            after = page.after
            if after is None:
                break
        assert [(one.node, one.artifact) for one in found] == [
            (node, f"org:{name}:1") for node in ("n1", "n2") for name in ("a", "b", "c")
        ]
        one = found[0].instances
        assert [(each.instance, each.state, each.ready, each.since) for each in one] == [
            (1, SliceState.ACTIVE, True, 5),
            (2, SliceState.FAILED, False, 5),
        ]
        assert [each.node for each in (await mine.slices(VIEWER, node="N2")).items] == ["n2"] * 3
        for artifact in ("org:b", "org:b:1"):
            assert [each.artifact for each in (await mine.slices(VIEWER, artifact=artifact)).items] == ["org:b:1"] * 2
            page = await mine.endpoints(VIEWER, artifact=artifact)
            assert [(each.artifact, each.method, each.instance, each.node) for each in page.items] == [
                ("org:b:1", "sum", 1, "n1")
            ]
        part = await mine.endpoints(VIEWER, limit=2)
        assert len((await mine.endpoints(VIEWER, after=part.after)).items) == 1
        for doing in (
            mine.slices(VIEWER, after="n1"),
            mine.endpoints(VIEWER, artifact="x"),
            mine.history(VIEWER, "a", after="x"),
            mine.list(VIEWER, limit=0),
        ):
            with pytest.raises(Invalid):
                await doing

    play(story)


def test_a_blueprint_that_another_program_wrote_is_listed_and_taken_over_by_an_apply() -> None:
    async def story(scene: Scene) -> None:
        key = BLUEPRINT.fill(blueprint="production")
        await scene.raw.put(key, b'{"slices": [{"artifact": "org:db:1", "instances": 1}], "note": "theirs"}')
        await scene.settle()
        assert (await service(scene).get(VIEWER, "production")).number == 0
        await nothing_written(
            scene,
            service(scene).apply(asked(ADMIN), "shop", blueprint(API)),
            Conflict,
            r"slices\[0\].needs\[0\]: org:db is in no applied blueprint; apply the one that contains it first",
        )
        view = await applied(scene, "production", DB)
        assert view.number == 2, "the leader counts what others wrote by the versions of the key"
        assert await owners(scene) == {"org:db": ("production", 2)}
        await applied(scene, "shop", API)

    play(story)


def test_a_strategy_alone_is_a_change() -> None:
    async def story(scene: Scene) -> None:
        await applied(scene, "shop", DB)
        view = await applied(scene, "shop", changed(DB, strategy=Strategy(max_surge=2)))
        assert view.number == 2
        entry = await SLICE_OWNER.get(scene.raw, base="org:db")
        assert entry is not None
        assert entry.value == SliceOwner(blueprint="shop", number=2)

    play(story)
