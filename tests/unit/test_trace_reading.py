"""What happened, read back: in order, by revision, by id; whatever is missing, forged, or cannot be read."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest
from service_scene import ADMIN, MEMBER_OF_ACME, ORG, PROJECT, SMALL, STRANGER, Scene, asked, play

from hostler.drivers.store.memory import MemoryStore
from hostler.engine.decision_history import TraceService
from hostler.engine.decision_recorder import Tracer
from hostler.engine.history_reader import LOOKED_AT, WITHIN, HistoryReader
from hostler.engine.idempotent_writer import instants
from hostler.engine.request import Caller
from hostler.engine.runtime.guarded_writer import Why
from hostler.errors import Conflict, Damaged, Invalid, NotFound, Unavailable
from hostler.keys.families import (
    AUDIT,
    AUDIT_FILE,
    BLUEPRINT,
    DEPLOYMENT,
    EPOCH,
    HANDLE,
    INSTANCE,
    MEMBER,
    NAME,
    SLICE,
    TRACE,
    USER,
    VM,
    WORKLOAD,
)
from hostler.keys.lab import LAB
from hostler.model.access import ROLES, Audit, AuditFile, Role
from hostler.model.control_api import Sort
from hostler.model.deployment import Blueprint, SliceRecord, SliceSpec, SliceState
from hostler.model.lab import LabUser
from hostler.model.node import Epoch, EpochKind
from hostler.model.rollout import Deployment, Phase
from hostler.model.trace import Impact, Touch, Trace
from hostler.model.vm import VirtualMachine, VmSpec
from hostler.model.vm_api import VmUpdate
from hostler.model.workload import Workload
from hostler.ports.audit_files import FiledLine
from hostler.ports.store import Delete, DeletePrefix, KeyValue, Put

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.errors import HostlerError
    from hostler.model.control_api import TraceView
    from hostler.ports.store import Operation


def service(scene: Scene) -> TraceService:
    return TraceService(scene.store, scene.view, clock=scene.clock)


async def decided(
    scene: Scene, id_: str, *, subject: str = "/s", at: float = 0.0, then: tuple[Operation, ...] = (), **fields: Any
) -> int:
    """A decision of that id in a transaction of its own; its revision."""
    trace = Trace(id=id_, actor="machines", what="place", subject=subject, at=at, **fields)
    put = Put(TRACE.prefix() + id_, TRACE.encode(trace))
    return (await scene.raw.txn([], [*then, put])).revision


def spelled(at: float, name: str) -> str:
    return "/".join(instants(at)) + f"-{name}"


async def all_of(scene: Scene, caller: Caller = ADMIN, limit: int = 100, **more: Any) -> list[TraceView]:
    found: list[TraceView] = []
    after: str | None = None
    while True:
        page = await service(scene).list(caller, limit=limit, after=after, **more)
        found += page.items
        after = page.after
        if after is None:
            return found


# In order


def test_everything_comes_once_newest_first_however_it_is_spread_over_time() -> None:
    async def story(scene: Scene) -> None:
        rng = random.Random(7)
        wall = scene.clock.wall() - 40 * 86400
        revisions = []
        for number in range(2_000):
            # Bursts, gaps of days, and long stretches with one each second.
            wall += rng.choice((0.0, 0.0, 0.0, 1e-6, 0.001, 0.01, 1.0, 60.0)) if number % 500 else 3 * 86400
            if number % 3:
                trace = Trace(id="?", actor="a", what="w", subject="/s", at=wall)
                put = Put(TRACE.prefix() + spelled(wall, f"{number:05d}"), TRACE.encode(trace))
            else:
                day, instant = instants(wall)
                line = Audit(who="ada", verb="v", subject="/s", at=wall)
                put = AUDIT.put(line, day=day, write=f"{instant}-{number:05d}")
            revisions.append((await scene.raw.txn([], [put])).revision)
        for limit in (1000, 333):
            found = await all_of(scene, limit=limit)
            assert [view.revision for view in found] == revisions[::-1]

    play(story)


def test_what_a_leader_also_wrote_into_the_audit_comes_once_as_the_decision() -> None:
    async def story(scene: Scene) -> None:
        day, instant = instants(scene.clock.wall())
        line = AUDIT.put(Audit(who="hostler", verb="vm.expire", subject="/s", at=0.0), day=day, write=f"{instant}-a")
        await decided(scene, spelled(scene.clock.wall(), "b"), then=(line,))
        assert [(view.sort, view.what) for view in await all_of(scene)] == [(Sort.DECISION, "place")]

    play(story)


@pytest.mark.parametrize("skew", [0.0, 1.5, -1.5])
def test_each_is_found_by_its_revision_also_where_clocks_differ(skew: float) -> None:
    async def story(scene: Scene) -> None:
        rng, wall, made = random.Random(3), scene.clock.wall() - 90_000, {}
        for number in range(1_000):
            wall += rng.choice((0.0005, 0.02, 0.2, 30.0, 600.0))
            # Every other replica's clock is off.
            at = wall + (skew if number % 2 else 0.0)
            day, instant = instants(at)
            line = Audit(who=f"u{number}", verb="v", subject="/s", at=at)
            await scene.raw.put("/other", b"")  # revisions in which nobody wrote anything down
            put = AUDIT.put(line, day=day, write=f"{instant}-{number}")
            made[(await scene.raw.txn([], [put])).revision] = f"u{number}"
        looked_for = rng.sample(sorted(made), 20)
        for revision in looked_for:
            for near in (None, wall):
                found = await HistoryReader(scene.store, clock=scene.clock).at(revision, near)
                assert found is not None
                assert found.actor == made[revision]
            assert await HistoryReader(scene.store, clock=scene.clock).at(revision - 1) is None

    play(story)


def test_finding_one_among_many_reads_few() -> None:
    async def story(scene: Scene) -> None:
        wall = scene.clock.wall() - 4_000
        for number in range(4_000):
            await decided(scene, spelled(wall + number, f"{number}"))
        read = 0
        ranged = scene.raw.range

        async def counted(prefix: str, **options: Any) -> Any:
            nonlocal read
            page = await ranged(prefix, **options)
            read += len(page.items)
            return page

        scene.raw.range = counted  # type: ignore[method-assign]
        assert await HistoryReader(scene.store, clock=scene.clock).at(1_000) is not None
        assert read < 1_000

    play(story)


# Links


def test_what_led_to_it_is_a_cause_by_id_a_revision_that_is_named_or_the_newest_that_was_read() -> None:
    async def story(scene: Scene) -> None:
        wall = scene.clock.wall()
        first = await decided(scene, spelled(wall, "1"))
        second = await decided(scene, spelled(wall + 1, "2"))
        older = Touch(key="/a", impact=Impact.READ, revision=first)
        newer = Touch(key="/b", impact=Impact.MODIFY, revision=second)
        await decided(scene, spelled(wall + 2, "3"), touches=(older, newer))
        await decided(scene, spelled(wall + 3, "4"), touches=(older, newer), cause=f"@{first}")
        await decided(scene, spelled(wall + 4, "5"), touches=(older, newer), cause=spelled(wall, "1"))
        parents = {view.id[-1]: view.parent[-1:] for view in await all_of(scene)}
        assert parents == {"1": "", "2": "", "3": "2", "4": "1", "5": "1"}

    play(story)


def test_a_page_brings_what_led_to_it_though_that_is_older() -> None:
    async def story(scene: Scene) -> None:
        wall = scene.clock.wall() - 5 * 86400
        cause = ""
        for number in range(5):
            id_ = spelled(wall + number * 86400, str(number))
            await decided(scene, id_, cause=cause)
            cause = id_
        page = await service(scene).list(ADMIN, limit=2)
        assert [view.id[-1] for view in page.items] == ["4", "3"]
        assert [view.id[-1] for view in page.before] == ["2", "1", "0"]

    play(story)


def test_one_whose_cause_was_trimmed_says_that_something_is_missing() -> None:
    async def story(scene: Scene) -> None:
        wall = scene.clock.wall()
        gone = spelled(wall, "gone")
        revision = await decided(scene, gone)
        vm = Touch(key=VM.fill(org=ORG, project=PROJECT, vm="v"), impact=Impact.READ, revision=revision)
        await decided(scene, spelled(wall + 1, "a"), cause=gone)
        await decided(scene, spelled(wall + 2, "b"), touches=(vm,))
        await decided(scene, spelled(wall + 3, "c"))
        await scene.raw.delete(TRACE.prefix() + gone)
        found = {view.id[-1]: view for view in await all_of(scene)}
        assert {name: (view.parent, view.open) for name, view in found.items()} == {
            "a": ("", True),
            "b": ("", True),
            "c": ("", False),
        }

    play(story)


def test_forged_causes_make_no_circles() -> None:
    async def story(scene: Scene) -> None:
        wall = scene.clock.wall()
        ids = [spelled(wall + number, str(number)) for number in range(4)]
        forged = [ids[1], ids[0], ids[2], f"@{10**17}"]
        for id_, cause in zip(ids, forged):
            await decided(scene, id_, cause=cause)
        for number, cause in enumerate(("@", "@-1", "@1e9", "@" + "9" * 400, "../..", "audit/../x", "x" * 9_000, "\n")):
            await decided(scene, spelled(wall + 10 + number, f"bad{number}"), cause=cause)
        found = {view.id: view for view in await all_of(scene)}
        assert len(found) == 12
        for view in found.values():
            assert not view.parent or found[view.parent].revision < view.revision
        assert {view.id for view in found.values() if view.parent} == {ids[1]}
        assert found[ids[0]].open

    play(story)


def test_what_nobody_can_read_is_counted_and_left_out() -> None:
    async def story(scene: Scene) -> None:
        wall = scene.clock.wall()
        await decided(scene, spelled(wall, "a"))
        day, instant = instants(wall)
        for name, value in (("b", b"{"), ("c", b'{"id":1}'), ("d", b"\xff")):
            await scene.raw.put(f"{TRACE.prefix()}{day}/{instant}-{name}", value)
        await scene.raw.put(f"{AUDIT.prefix()}{day}/{instant}-e", b"[]")
        await scene.raw.put(f"{TRACE.prefix()}{day}/{instant}/deep", b"{}")
        await scene.raw.put(f"{TRACE.prefix()}0000-99-99/x", b"{}")
        await decided(scene, spelled(wall + 1, "f"), cause=f"{day}/{instant}-b")
        page = await service(scene).list(ADMIN)
        assert [view.id[-1] for view in page.items] == ["f", "a"]
        assert page.items[0].open
        assert page.unreadable >= 5

    play(story)


# Who sees what


def test_tenants_do_not_see_each_others_traces() -> None:
    async def story(scene: Scene) -> None:
        vm = await scene.made("www")
        key, wall = VM.fill(org=ORG, project=PROJECT, vm=vm.id), scene.clock.wall()
        node = MEMBER.fill(node="local-1")
        theirs = VM.fill(org="other", project="p", vm="x")
        await decided(scene, spelled(wall, "mine"), subject=key, cause="")
        silent = spelled(wall + 1, "silent")
        await decided(scene, silent, subject=node)
        await decided(scene, spelled(wall + 2, "theirs"), subject=theirs, cause=silent)
        both = (Touch(key=key, impact=Impact.READ), Touch(key=theirs, impact=Impact.READ, revision=1))
        await decided(scene, spelled(wall + 3, "mixed"), subject=key, touches=both, cause=spelled(wall + 2, "theirs"))
        await decided(scene, spelled(wall + 4, "odd"), subject="/hostler/v1/anything")
        await decided(scene, spelled(wall + 5, "lab"), subject=LAB.fill(user="ada"))
        await scene.settle()

        mine = {view.id.rpartition("-")[2]: view for view in await all_of(scene, MEMBER_OF_ACME)}
        assert {"mine", "silent", "mixed"} <= set(mine)
        assert not {"theirs", "odd", "lab"} & set(mine)
        assert [touch.key for touch in mine["mixed"].touches] == [key]
        assert mine["mixed"].open, "something led to it that is not for them"
        other = {view.id.rpartition("-")[2] for view in await all_of(scene, STRANGER)}
        assert other == {"theirs", "silent"}
        with pytest.raises(NotFound):
            await service(scene).why(STRANGER, f"vm/{ORG}/{PROJECT}/www")
        with pytest.raises(NotFound):
            await service(scene).why(STRANGER, vm.id)
        with pytest.raises(NotFound):
            await service(scene).list(STRANGER, text="www")
        assert len(await all_of(scene)) == 7, "who belongs everywhere sees all, and the wish"

    play(story)


@pytest.mark.parametrize("restored", [False, True], ids=["by its revision", "by its time, where a store was restored"])
def test_who_takes_the_name_of_a_workload_does_not_take_its_traces(restored: bool) -> None:
    async def story(scene: Scene) -> None:
        wall, key = scene.clock.wall(), WORKLOAD.fill(workload="web")
        instance = INSTANCE.fill(workload="web", instance="1")

        def web(org: str, project: str, at: float) -> Operation:
            made = Workload(
                name="web", org=org, project=project, instances=1, spec=VmSpec(cpus=1, memory_mib=1), created_at=at
            )
            return WORKLOAD.put(made, workload="web")

        late = 0.0 if restored else 100.0
        theirs, mine = web(ORG, PROJECT, wall), web("other", "p", wall + 100)
        if restored:
            await scene.raw.txn([], [mine])
        await decided(scene, spelled(wall, "old"), subject=key, at=wall + late, then=() if restored else (theirs,))
        await decided(scene, spelled(wall + 1, "old2"), subject=instance, at=wall + late)
        await scene.settle()
        before = {view.id.rpartition("-")[2] for view in await all_of(scene, MEMBER_OF_ACME)}
        assert before == (set() if restored else {"old", "old2"})
        if not restored:
            await scene.raw.delete(key)
            await scene.raw.txn([], [mine])
        both = (Touch(key=instance, impact=Impact.CREATE), Touch(key=key, impact=Impact.READ))
        await decided(scene, spelled(wall + 101, "new"), subject=instance, at=wall + 101, touches=both)
        await scene.settle()
        (seen,) = await all_of(scene, STRANGER)
        assert seen.id.endswith("new")
        assert [touch.key for touch in seen.touches] == [instance, key]
        assert await all_of(scene, MEMBER_OF_ACME) == []
        why = await service(scene).why(STRANGER, "workload/web")
        assert not any("old" in step.id for step in why.steps)
        assert len(await all_of(scene)) == 3

    play(story)


def test_a_student_sees_the_own_lab_and_no_other() -> None:
    async def story(scene: Scene) -> None:
        for user in ("ada", "bob"):
            record = LabUser(user=user, changed_at=1.0)
            trace = Trace(id="x", actor="labs", what="w", subject=LAB.fill(user=user), at=0.0)
            put = Put(TRACE.prefix() + spelled(scene.clock.wall(), user), TRACE.encode(trace))
            await scene.raw.txn([], [LAB.put(record, user=user), put])
        await scene.settle()
        ada = Caller("ada", ROLES[Role.MEMBER], ("labs/ada",))
        assert [view.subject for view in await all_of(scene, ada)] == ["lab ada"]
        assert (await service(scene).why(ada, "lab/ada")).state == "has no lab now"
        with pytest.raises(NotFound):
            await service(scene).why(ada, "lab/bob")

    play(story)


# Why


def test_why_follows_its_records_back_to_the_wish_and_knows_agents_by_what_they_wrote() -> None:
    async def story(scene: Scene) -> None:
        vm = await scene.made("www")
        ids = {"org": ORG, "project": PROJECT, "vm": vm.id}
        wish = await VM.get(scene.raw, **ids)
        assert wish is not None
        tracer = Tracer(scene.clock, scene.new_id, "machines")
        handle = await scene.seen(vm)
        there = await HANDLE.get(scene.raw, **ids)
        then: list[Operation] = [HANDLE.put(handle, **ids)]
        tracer.add(
            then,
            Why(
                what="release",
                why="gone",
                read=(
                    wish,
                    there,
                ),
            ),
            subject=wish.key,
        )
        await scene.raw.txn([], then)
        await scene.seen(vm)
        await scene.settle()
        why = await service(scene).why(MEMBER_OF_ACME, "vm/www", org=ORG, project=PROJECT)
        assert (why.object, why.state, why.since) == (f"vm {ORG}/{PROJECT}/www", "may run on local-1", 1.0)
        assert [(view.sort, view.what) for view in why.steps] == [
            (Sort.DECISION, "release"),
            (Sort.REPORT, "seen"),
            (Sort.WISH, "vm.create"),
        ]
        assert why.steps[1].why == "it is running"
        assert [view.parent for view in why.steps] == [why.steps[1].id, why.steps[2].id, ""]

    play(story)


def test_what_is_gone_is_remembered_by_its_id() -> None:
    async def story(scene: Scene) -> None:
        vm = await scene.made("www")
        key = VM.fill(org=ORG, project=PROJECT, vm=vm.id)
        gone: list[Operation] = [Delete(key)]
        Tracer(scene.clock, scene.new_id, "machines").add(gone, Why(what="forget", why="it is gone"), subject=key)
        await scene.raw.txn([], gone)
        await scene.settle()
        why = await service(scene).why(MEMBER_OF_ACME, f"vm/{ORG}/{PROJECT}/{vm.id}")
        assert why.state == "is gone"
        assert [view.what for view in why.steps] == ["forget", "vm.create"]
        with pytest.raises(NotFound):
            await service(scene).why(MEMBER_OF_ACME, f"vm/{ORG}/{PROJECT}/never")

    play(story)


def test_why_says_where_older_lines_of_the_audit_log_are_if_steps_are_missing() -> None:
    async def story(scene: Scene) -> None:
        vm = await scene.made("www")
        why = service(scene).why
        object_ = f"vm/{ORG}/{PROJECT}/www"
        for day in ("2026-08-01", "2026-09-30"):
            filed = AUDIT_FILE.put(AuditFile(host="h", folder="/audit", lines=7), day=day, place="p")
            await scene.raw.put(filed.key, filed.value)
        assert (await why(ADMIN, object_)).filed == "", "nothing is missing"
        await scene.raw.delete_prefix(AUDIT.prefix())  # as the leader does once they are filed
        said = (await why(ADMIN, object_)).filed
        assert "in files (2026-08-01 to 2026-09-30)" in said
        assert f"hostler audit --subject {vm.id}" in said
        assert (await why(MEMBER_OF_ACME, object_)).filed == "", "the audit log is not for all"
        with pytest.raises(NotFound, match="no history is kept for it in the store; older entries .* --subject never"):
            await why(ADMIN, f"vm/{ORG}/{PROJECT}/never")

    play(story)


def test_a_workload_that_is_gone_is_remembered_by_its_name_where_everything_is_seen() -> None:
    async def story(scene: Scene) -> None:
        wall, key = scene.clock.wall(), WORKLOAD.fill(workload="web")
        instance = INSTANCE.fill(workload="web", instance="1")
        web = Workload(name="web", org=ORG, project=PROJECT, instances=1, spec=SMALL, created_at=wall)
        wish = WORKLOAD.put(web, workload="web")
        await decided(scene, spelled(wall, "made"), subject=key, at=wall, then=(wish,))
        await decided(scene, spelled(wall + 1, "first"), subject=instance, at=wall + 1)
        await scene.settle()
        gone = await service(scene).why(MEMBER_OF_ACME, "workload/web/1")
        assert (gone.object, gone.state, len(gone.steps)) == ("workload web/1", "is gone", 1)
        await decided(scene, spelled(wall + 2, "end"), subject=key, at=wall + 2, then=(Delete(key),))
        await scene.settle()
        why = await service(scene).why(ADMIN, "workload/Web")
        assert (why.object, why.state) == ("workload web", "is gone")
        assert [step.id.rpartition("-")[2] for step in why.steps] == ["end", "made"]
        assert len(await all_of(scene, text="workload/web")) == 2
        assert (await service(scene).why(ADMIN, "workload/web/1")).state == "is gone"
        for text in ("workload/web", "workload/web/1"):
            with pytest.raises(NotFound):
                await service(scene).why(MEMBER_OF_ACME, text)

    play(story)


def test_names_are_found_as_people_write_them_and_doubts_are_told() -> None:
    async def story(scene: Scene) -> None:
        await scene.made("WWW")
        await scene.node("local-1")
        wanted = (await scene.vms.create(asked(ADMIN), "other", "p", _wish("www"))).value
        await scene.settle()
        asking = service(scene)
        assert (await asking.why(ADMIN, f"vm/{ORG}/{PROJECT}/www")).object == f"vm {ORG}/{PROJECT}/WWW"
        assert (await asking.why(MEMBER_OF_ACME, "www")).object == f"vm {ORG}/{PROJECT}/WWW"
        assert (await asking.why(ADMIN, wanted.id)).object == "vm other/p/www"
        assert (await asking.why(MEMBER_OF_ACME, "LOCAL-1")).object == "node local-1"
        with pytest.raises(Conflict, match="there are several: vm/acme/web/WWW, vm/other/p/www"):
            await asking.why(ADMIN, "www")
        for nothing in (
            "node/none",
            "rack/none",
            "lab/none",
            "workload/none",
            "workload/none/1",
            "a/b/c/d",
            "rack/a/b/c",
        ):
            with pytest.raises(NotFound):
                await asking.why(ADMIN, nothing)
        for wrong in ("", "vm/", "a//b"):
            with pytest.raises(Invalid):
                await asking.why(ADMIN, wrong)
        with pytest.raises(Invalid):
            await asking.list(ADMIN, after="nonsense")
        with pytest.raises(Invalid):
            await asking.list(ADMIN, limit=0)

    play(story)


def _wish(name: str) -> Any:
    from hostler.model.vm_api import VmCreate

    return VmCreate(name=name, spec=SMALL)


# Deployments


def test_a_slice_and_its_blueprint_tell_how_they_came_to_be() -> None:
    async def story(scene: Scene) -> None:
        artifact = "org.example:greeting:1.0.0"
        spec = SliceSpec(artifact=artifact, instances=1)
        wish = BLUEPRINT.put(Blueprint(slices=(spec,)), blueprint="shop")
        await scene.raw.txn([], [wish])
        way = Deployment(
            blueprint="shop",
            number=1,
            artifact=artifact,
            phase=Phase.DONE,
            started_at=1.0,
            changed_at=2.0,
            why="all is there",
        )
        put = DEPLOYMENT.put(way, base=spec.base)
        there = SLICE.put(SliceRecord(state=SliceState.LOAD, timestamp=1), node="r1-1", artifact=artifact)
        await decided(
            scene, "1970-01-01/00:00:01-a", subject=put.key, at=1.0, why="it is wished for", then=(put, there)
        )
        await scene.view.refresh()
        told = await service(scene).why(ADMIN, f"slice/{spec.base}")
        assert (told.object, told.state) == (f"slice {spec.base}", "is done: all is there")
        assert [one.why for one in told.steps] == ["it is wished for"]
        assert (await service(scene).why(ADMIN, artifact)).object == f"slice {spec.base}"
        told = await service(scene).why(ADMIN, "blueprint/Shop")
        assert (told.object, told.state) == ("blueprint shop", "has 1 slice: 1 done")
        assert (await all_of(scene, text=f"slice/{spec.base}"))[0].subject == f"slice {spec.base}"
        with pytest.raises(NotFound):
            await service(scene).why(MEMBER_OF_ACME, f"slice/{spec.base}")

    play(story)


# After a copy or restore


def test_why_invents_no_cause_after_a_copy() -> None:
    async def story(scene: Scene) -> None:
        first = await decided(scene, spelled(10.0, "user"), subject=USER.fill(user="ada"), at=10.0)
        placed = spelled(20.0, "placed")
        vm = VM.fill(org=ORG, project=PROJECT, vm="v1")
        record = VirtualMachine(id="v1", name="web", org=ORG, project=PROJECT, spec=SMALL, created_at=1.0)
        put = Put(vm, record.encode())
        named = NAME.put("v1", org=ORG, project=PROJECT, name="web")
        await decided(scene, placed, subject=vm, at=20.0, then=(put, named), cause=f"@{first}")
        kept = (await scene.raw.range("/")).items
        async with MemoryStore(clock=scene.clock) as copied:
            await copied.txn([], [Put(kv.key, kv.value) for kv in kept])  # one revision for all of them
            epoch = Epoch(begun_by=EpochKind.COPY, source="sqlite:///old.db", at=30.0)
            border = (await copied.txn([], [EPOCH.put(epoch, epoch=30)])).revision
            traces = TraceService(copied, scene.view, clock=scene.clock)
            found = await traces.why(ADMIN, f"vm/{ORG}/{PROJECT}/web")
            assert [(step.id, step.parent) for step in found.steps] == [(placed, "")]
            assert "copied from sqlite:///old.db at 1970-01-01T00:00:30Z" in found.border
            listed = await traces.list(ADMIN, limit=100)
            assert [item.id for item in listed.items] == [placed, spelled(10.0, "user")]
            assert not listed.before
            # What happens from now on is followed as ever, up to the border.
            later = spelled(40.0, "later")
            trace = Trace(id=later, actor="machines", what="start", subject=vm, at=40.0)
            await copied.txn([], [put, Put(TRACE.prefix() + later, TRACE.encode(trace))])
            found = await traces.why(ADMIN, f"vm/{ORG}/{PROJECT}/web")
            assert [step.id for step in found.steps] == [later, placed]
            assert found.steps[0].revision > border

    play(story)


class Filed:
    """The lines of the audit that were in the store, in files, the newest day last."""

    place, host, folder = "p", "h", "/audit"

    def __init__(self, lines: Sequence[KeyValue] = (), *, fails: HostlerError | None = None) -> None:
        self.lines, self.fails, self.read_lines = list(lines), fails, 0

    async def days(self) -> tuple[str, ...]:
        if self.fails is not None:
            raise self.fails
        return tuple(sorted({kv.key.split("/")[4] for kv in self.lines}))

    async def read_back(self, day: str, end: int | None, limit: int) -> list[FiledLine]:
        await asyncio.sleep(0.01)
        there = [kv for kv in self.lines if f"/{day}/" in kv.key][: None if end is None else end]
        first = max(0, len(there) - limit)
        self.read_lines += len(there) - first
        return [FiledLine(there[at], at, at + 1) for at in reversed(range(first, len(there)))]


async def filed_away(scene: Scene, files: Filed) -> None:
    """As the leader does: every line goes to files, and the store records where."""
    files.lines += (await scene.raw.range(AUDIT.prefix())).items
    record = AUDIT_FILE.put(AuditFile(host="h", folder="/audit", lines=len(files.lines)), day="2026-01-01", place="p")
    await scene.raw.txn([], [DeletePrefix(AUDIT.prefix()), record])


def test_why_reads_lines_of_the_audit_log_that_are_only_in_files() -> None:
    async def story(scene: Scene) -> None:
        vm = await scene.made("www")
        await scene.vms.update(asked(), ORG, PROJECT, "www", VmUpdate(cpus=2))
        await scene.made("other")
        subject = VM.fill(org=ORG, project=PROJECT, vm=vm.id)
        entry = await VM.get(scene.raw, org=ORG, project=PROJECT, vm=vm.id)
        assert entry is not None
        touches = (Touch(key=subject, impact=Impact.READ, revision=entry.mod_revision),)
        await decided(scene, spelled(scene.clock.wall(), "t"), subject=subject, at=scene.clock.wall(), touches=touches)
        object_, files = f"vm/{ORG}/{PROJECT}/www", Filed()
        before = await service(scene).why(ADMIN, object_)
        await filed_away(scene, files)
        traces = TraceService(scene.store, scene.view, clock=scene.clock, files=files)
        why = await traces.why(ADMIN, object_)
        assert [step.what for step in why.steps if step.sort is Sort.WISH] == ["vm.update", "vm.create"]
        assert [(one.id, one.parent, one.open) for one in why.steps] == [
            (one.id, one.parent, one.open) for one in before.steps
        ], "as if the lines were still in the store"
        assert why.filed == "", "nothing is missing"

        files.read_lines = 0
        unseen = await traces.why(MEMBER_OF_ACME, object_)  # who may not read the audit
        assert not [step for step in unseen.steps if step.sort is Sort.WISH]
        assert (unseen.filed, files.read_lines) == ("", 0)

        await scene.raw.delete_prefix("/plasmavmc/")  # it is gone, and so is every trace of it
        await scene.raw.delete_prefix(TRACE.prefix())
        await scene.settle()
        gone = await traces.why(ADMIN, f"vm/{ORG}/{PROJECT}/{vm.id}")
        assert [step.what for step in gone.steps] == ["vm.update", "vm.create"]
        with pytest.raises(NotFound):
            await traces.why(MEMBER_OF_ACME, f"vm/{ORG}/{PROJECT}/{vm.id}")

    play(story)


def test_an_administrator_of_one_org_sees_of_the_files_what_the_audit_shows() -> None:
    async def story(scene: Scene) -> None:
        vm = await scene.made("www")
        files = Filed()
        await filed_away(scene, files)
        await scene.raw.delete_prefix("/plasmavmc/")
        await scene.settle()
        traces = TraceService(scene.store, scene.view, clock=scene.clock, files=files)
        stranger = Caller("eve", ROLES[Role.ADMIN], ("else/where",))
        for text in (f"vm/{ORG}/{PROJECT}/{vm.id}", vm.id):
            with pytest.raises(NotFound):
                await traces.why(stranger, text)

    play(story)


def test_why_spends_a_bounded_time_on_files_and_goes_on_without_those_that_cannot_be_read() -> None:
    async def story(scene: Scene) -> None:
        vm = await scene.made("www")
        other = Audit(who="u", verb="v", subject="/s", at=1.0).encode()
        many = [
            KeyValue(AUDIT.fill(day="2026-11-15", write=f"10:00:00.{number:06d}-x"), other, 7, 7, 1)
            for number in range(LOOKED_AT * 2)
        ]
        files = Filed()
        await filed_away(scene, files)
        files.lines += many  # newer than what is needed
        traces = TraceService(scene.store, scene.view, clock=scene.clock, files=files)
        began = scene.clock.now()
        questions = [traces.why(ADMIN, f"vm/{ORG}/{PROJECT}/www") for _ in range(5)]
        for why in await asyncio.gather(*questions):
            assert f"hostler audit --subject {vm.id}" in why.filed, "steps are missing, and it says so"
        assert scene.clock.now() - began <= WITHIN + 1
        assert files.read_lines <= 5 * LOOKED_AT
        for error in (Unavailable("no disk"), Damaged("not as written")):
            broken = TraceService(scene.store, scene.view, clock=scene.clock, files=Filed(fails=error))
            assert "hostler audit" in (await broken.why(ADMIN, f"vm/{ORG}/{PROJECT}/www")).filed

    play(story)


def test_a_filed_line_of_the_store_before_a_restore_is_no_cause_by_its_revision() -> None:
    async def story(scene: Scene) -> None:
        vm = await scene.made("www")
        files = Filed()
        await filed_away(scene, files)
        subject = VM.fill(org=ORG, project=PROJECT, vm=vm.id)
        wall = scene.clock.wall()
        await EPOCH.create(scene.raw, Epoch(begun_by=EpochKind.RESTORE, source="x", at=wall + 5), epoch=1)
        border = (await scene.raw.range("")).revision
        led = border + 1
        touches = (Touch(key=subject, impact=Impact.READ, revision=led),)
        await scene.raw.put("/something", b"")
        # A line of the store before, about something else, that has the number of what led to the decision.
        foreign = Audit(who="mallory", verb="user.first", subject=USER.fill(user="m"), at=wall)
        key = AUDIT.fill(day="2026-01-02", write="10:00:00.000000-x")
        files.lines.append(KeyValue(key, foreign.encode(), led, led, 1))
        await scene.clock.sleep(10)
        at = scene.clock.wall()
        put = Put(subject, (await scene.raw.get(subject)).value)  # type: ignore[union-attr]
        await decided(scene, spelled(at, "t"), subject=subject, at=at, touches=touches, then=(put,))
        traces = TraceService(scene.store, scene.view, clock=scene.clock, files=files)
        why = await traces.why(ADMIN, f"vm/{ORG}/{PROJECT}/www")
        assert "user.first" not in [step.what for step in why.steps]
        assert [step.what for step in why.steps] == ["place", "vm.create"]

    play(story)
