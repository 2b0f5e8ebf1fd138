"""The leader's work on slices, in virtual time, against small stand-ins for agents."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from dose import seeds

from hostler.drivers.store.faulty import Faults, FaultyStore
from hostler.engine.deployments.state_machine import Limits
from hostler.keys.families import BLUEPRINT, DEPLOYMENT, ENDPOINT, RETRIES, SLICE, SLICE_DECISION, SLICE_OWNER
from hostler.model.deployment import Blueprint, SliceSettings, SliceSpec, SliceState, Strategy, StrategyKind
from hostler.model.deployment import Stage as CanaryStage
from hostler.model.node import Lifecycle
from hostler.model.rollout import Phase

from .slice_stage import Crashing, Stage, play, spec

if TYPE_CHECKING:
    from collections.abc import Awaitable

S = SliceState


def test_five_instances_on_two_nodes() -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a", "b")
        await stage.lead()
        await stage.apply(spec(instances=5))
        await stage.until(lambda: stage.settled(spec(instances=5)))
        serving = await stage.ready("org:web:1")
        assert sorted(Counter(node for node, _ in serving).values()) == [2, 3]
        assert sorted(number for _, number in serving) == [1, 2, 3, 4, 5]
        deployment = await stage.deployment("org:web")
        assert deployment is not None
        assert deployment.phase is Phase.DONE
        decision = await stage.decision("org:web:1")
        assert decision is not None
        assert {one.subject for one in decision.chosen} == {"a", "b"}

    play(story)


def test_what_changes_in_number_changes_by_that() -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a", "b", "c")
        await stage.lead()
        kept: set[int] = set()
        for instances in (6, 2, 4):
            await stage.apply(spec(instances=instances))
            await stage.until(lambda n=instances: stage.settled(spec(instances=n)))  # type: ignore[misc]
            if instances == 2:
                kept = {number for _, number in await stage.ready("org:web:1")}
        lowest = [number for number in range(1, 7) if number not in kept][:2]
        assert {number for _, number in await stage.ready("org:web:1")} == {*kept, *lowest}

    play(story)


def test_nodes_join_and_leave() -> None:
    async def story(stage: Stage) -> None:
        await stage.lead()
        await stage.apply(spec(instances=4))
        decided = lambda: stage.decision("org:web:1")  # noqa: E731
        await stage.until(lambda: _is(decided()))
        waits = await decided()
        assert waits is not None
        assert waits.waiting == 4
        assert any("no" in line for line in stage.told)
        await stage.nodes("a")
        await stage.until(lambda: stage.settled(spec(instances=4)))
        await stage.nodes("b", "c")
        await stage.apply(spec(instances=8))
        await stage.until(lambda: stage.settled(spec(instances=8)))
        assert Counter(node for node, _ in await stage.ready("org:web:1")) == {"a": 4, "b": 2, "c": 2}

    play(story)


async def _is(found: Awaitable[Any]) -> bool:
    return await found is not None


def test_a_dead_nodes_endpoints_go_with_its_slices_and_replacements_come() -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a", "b", "c")
        await stage.lead()
        await stage.apply(spec(instances=6), spec("org:db:1", instances=3))
        await stage.until(lambda: stage.settled(spec(instances=6), spec("org:db:1", instances=3)))
        await stage.die("b")
        await stage.until(lambda: _empty(stage, "b"), within=1)
        ends = [entry.value.node_id for entry in (await ENDPOINT.list(stage.store)).entries]
        assert ends
        assert "b" not in ends
        await stage.until(lambda: stage.settled(spec(instances=6), spec("org:db:1", instances=3)))
        await stage.nodes("b")
        await stage.until(lambda: stage.settled(spec(instances=6), spec("org:db:1", instances=3)))

    play(story)


async def _empty(stage: Stage, node: str) -> bool:
    return not any(where == node for where, _, _ in await stage.slices())


def test_what_only_the_dead_node_had_comes_back_whatever_state_it_was_in() -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a", "b")
        stage.ignores = lambda node, _artifact, state: node == "a" and state is S.ACTIVATING
        await stage.lead()
        await stage.apply(spec(instances=4))
        await stage.until(lambda: _states(stage, {"ACTIVATING": 2, "ACTIVE": 2}))
        await stage.die("a")
        await stage.until(lambda: stage.settled(spec(instances=4)))

    play(story)


async def _states(stage: Stage, wanted: dict[str, int]) -> bool:
    return Counter(one.state.value for one in (await stage.slices()).values()) == wanted


def test_a_drained_node_empties_one_at_a_time_and_nothing_is_missing_meanwhile() -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a", "b", "c")
        await stage.lead()
        wanted = (spec(instances=6), spec("org:db:1", instances=3))
        await stage.apply(*wanted)
        await stage.until(lambda: stage.settled(*wanted))
        stage.low, stage.most = {}, {}
        await stage.lifecycle("a", Lifecycle.DRAINING)

        async def empty() -> bool:
            return not any(node == "a" for node, _, _ in await stage.slices()) and await stage.settled(*wanted)

        await stage.until(empty)
        assert stage.low == {"org:web": 6, "org:db": 3}
        assert stage.most["org:web"] <= 8  # one comes while the one before it is unloaded
        assert stage.view is not None
        assert stage.view.fleet.count_on("a") == 0

    play(story)


def test_what_no_other_node_takes_stays_on_a_drained_one_and_it_is_told() -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a")
        await stage.lead()
        await stage.apply(spec(instances=2))
        await stage.until(lambda: stage.settled(spec(instances=2)))
        await stage.lifecycle("a", Lifecycle.DRAINING)

        async def said() -> bool:
            decision = await stage.decision("org:web:1")
            return decision is not None and any("drained" in one.why for one in decision.passed_over)

        await stage.until(said)
        assert await stage.settled(spec(instances=2))
        await stage.nodes("b")

        async def moved() -> bool:
            return {node for node, _ in await stage.ready("org:web:1")} == {"b"}

        await stage.until(moved)
        await stage.until(lambda: stage.settled(spec(instances=2)))

    play(story)


def test_what_needs_another_is_activated_after_it_and_goes_before_it() -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a", "b")
        holds = asyncio.Event()
        stage.ignores = lambda _node, artifact, state: (
            artifact.startswith("org:db") and state is S.ACTIVATE and not holds.is_set()
        )
        await stage.lead()
        wanted = (spec(instances=2, needs=("org:db",)), spec("org:db:1", instances=1))
        await stage.apply(*wanted)
        await stage.until(lambda: _states(stage, {"LOADED": 2, "ACTIVATE": 1}))
        await stage.clock.sleep(5)
        assert await _states(stage, {"LOADED": 2, "ACTIVATE": 1})
        holds.set()
        entry = (await SLICE.list(stage.store)).entries
        for one in entry:  # a stand-in looks again when its key changes
            await SLICE.replace(stage.store, one, one.value)
        await stage.until(lambda: stage.settled(*wanted))

        order: list[str] = []

        async def noted() -> None:
            async with stage.store.watch(SLICE.prefix()) as events:
                async for event in events:
                    order.extend((f"{event.type} {SLICE.parse(event.kv.key)['artifact']}",))

        noting = asyncio.create_task(noted())
        await stage.clock.sleep(0.01)
        await stage.remove()

        async def gone() -> bool:
            return not (await SLICE_OWNER.list(stage.store)).entries

        await stage.until(gone)
        noting.cancel()
        assert order.index("put org:db:1") > max(at for at, what in enumerate(order) if what == "delete org:web:1")
        assert not (await DEPLOYMENT.list(stage.store)).entries
        assert not (await SLICE_DECISION.list(stage.store)).entries

    play(story)


def test_failures_are_counted_and_another_node_is_tried() -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a", "b")
        stage.refuses = lambda node, _artifact, state: "no room" if node == "a" and state is S.LOADED else ""
        await stage.lead()
        await stage.apply(spec(instances=2))
        await stage.until(lambda: stage.settled(spec(instances=2)))
        assert {node for node, _ in await stage.ready("org:web:1")} == {"b"}
        retries = await stage.retries("org:web:1")
        assert retries is not None
        assert retries.total == 1
        assert retries.nodes == {"a": 1}
        await stage.until(lambda: _recovered(stage, "org:web:1"))

    play(story)


async def _recovered(stage: Stage, artifact: str) -> bool:
    retries = await stage.retries(artifact)
    return retries is None or retries.failures == 0


def test_a_first_version_that_fails_is_given_up_and_a_new_apply_tries_again() -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a", "b")
        broken = [True]
        stage.refuses = lambda _node, _artifact, state: "no module" if broken[0] and state is S.LOADED else ""
        await stage.lead()
        await stage.apply(spec(instances=1))
        for _ in range(3):  # whoever leads: failures and giving up are known
            await stage.clock.sleep(3)
            await stage.lead()
        await stage.until(lambda: _in_phase(stage, Phase.FAILED))
        retries = await stage.retries("org:web:1")
        assert retries is not None
        assert retries.given_up
        assert retries.failures == 5
        assert "no module" in retries.why
        before = retries.total
        await stage.clock.sleep(700)
        retries = await stage.retries("org:web:1")
        assert retries is not None
        assert retries.total == before, "nothing more is tried"
        broken[0] = False
        await stage.apply(spec(instances=1))
        await stage.until(lambda: stage.settled(spec(instances=1)))
        assert await _in_phase(stage, Phase.DONE)

    play(story)


async def _in_phase(stage: Stage, phase: Phase) -> bool:
    deployment = await stage.deployment("org:web")
    return deployment is not None and deployment.phase is phase


def test_a_crash_in_service_is_tried_again_after_growing_pauses() -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a")
        await stage.lead()
        await stage.apply(spec(instances=1))
        await stage.until(lambda: stage.settled(spec(instances=1)))
        stage.refuses = lambda _node, _artifact, state: "broken" if state is S.ACTIVE else ""
        await stage.crash("a", "org:web:1", 1)
        began = stage.clock.now()

        async def failed(times: int) -> bool:
            retries = await stage.retries("org:web:1")
            return retries is not None and retries.failures >= times

        await stage.until(lambda: failed(8), within=600)
        assert stage.clock.now() - began > 1 + 2 + 4 + 8 + 16 + 32 + 64
        retries = await stage.retries("org:web:1")
        assert retries is not None
        assert not retries.given_up, "what served once is tried for ever"
        stage.refuses = lambda _node, _artifact, _state: ""
        await stage.until(lambda: stage.settled(spec(instances=1)), within=400)

    play(story)


@pytest.mark.parametrize("state", [S.LOAD, S.LOADING, S.ACTIVATE, S.ACTIVATING])
def test_what_is_stuck_is_remedied_after_three_times_its_limit(state: SliceState) -> None:
    async def story(stage: Stage) -> None:
        stage.limits = Limits(loading=4, activating=4, deactivating=4, unloading=4)
        await stage.nodes("a", "b")
        stage.ignores = lambda node, _artifact, now: node == "a" and now is state
        await stage.lead()
        await stage.apply(spec(instances=2))
        await stage.until(lambda: _has(stage, state))
        stuck_at = stage.clock.now()

        async def both_on_b() -> bool:
            return [node for node, _ in await stage.ready("org:web:1")] == ["b", "b"]

        await stage.until(both_on_b)
        assert 12 <= stage.clock.now() - stuck_at <= 12 + 8

    play(story)


async def _has(stage: Stage, state: SliceState) -> bool:
    return any(one.state is state for one in (await stage.slices()).values())


@pytest.mark.parametrize("state", [S.DEACTIVATE, S.DEACTIVATING, S.UNLOADING])
def test_what_is_stuck_on_its_way_out_goes_in_the_end(state: SliceState) -> None:
    async def story(stage: Stage) -> None:
        stage.limits = Limits(loading=4, activating=4, deactivating=4, unloading=4)
        await stage.nodes("a")
        await stage.lead()
        await stage.apply(spec(instances=2))
        await stage.until(lambda: stage.settled(spec(instances=2)))
        once = [2]

        def ignores(_node: str, _artifact: str, now: SliceState) -> bool:
            once[0] -= now is state
            return now is state and once[0] > 0

        stage.ignores = ignores
        await stage.apply(spec(instances=1))
        await stage.until(lambda: stage.settled(spec(instances=1)))

    play(story)


def test_an_upgrade_keeps_all_serving() -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a", "b", "c")
        await stage.lead()
        await stage.apply(spec(instances=4))
        await stage.until(lambda: stage.settled(spec(instances=4)))
        stage.low = {}
        await stage.apply(spec("org:web:2", instances=4))
        await stage.until(lambda: stage.settled(spec("org:web:2", instances=4)))
        assert stage.low["org:web"] == 4
        settings = SliceSettings(memory_mib=64)
        await stage.apply(spec("org:web:2", instances=4, settings=settings))

        async def renewed() -> bool:
            entries = (await SLICE.list(stage.store)).entries
            return await stage.settled(spec("org:web:2", instances=4)) and all(
                list(entry.value.settings.values()) == [settings] for entry in entries
            )

        await stage.until(renewed)
        assert stage.low["org:web"] == 4

    play(story)


def test_an_upgrade_that_fails_leaves_the_old_version_serving() -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a", "b", "c")
        stage.refuses = lambda _node, artifact, state: "bad" if artifact.endswith(":2") and state is S.ACTIVE else ""
        await stage.lead()
        await stage.apply(spec(instances=3))
        await stage.until(lambda: stage.settled(spec(instances=3)))
        stage.low = {}
        await stage.apply(spec("org:web:2", instances=3))
        await stage.until(lambda: _in_phase(stage, Phase.FAILED))
        await stage.until(lambda: stage.settled(spec(instances=3)))
        assert stage.low["org:web"] == 3

    play(story)


def test_answers_that_get_lost_change_nothing() -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a", "b", "c")
        faults = Faults(lost=0.3, never=0.1, unavailable=0.1, slow=0.3, slowest=3.0)
        await stage.lead(FaultyStore(stage.store, stage.rng, clock=stage.clock, faults=faults))
        for version, instances in ((1, 5), (2, 3), (3, 7)):
            wanted = spec(f"org:web:{version}", instances=instances)
            await stage.apply(wanted)
            await stage.until(lambda: stage.settled(wanted), within=900)  # noqa: B023
        await stage.lifecycle("a", Lifecycle.DRAINING)

        await stage.until(lambda: _empty(stage, "a"), within=900)
        await stage.die("b")
        await stage.until(lambda: stage.settled(spec("org:web:3", instances=7)), within=900)

    for seed in seeds(test=2, pool=4, full=100):
        play(story, seed=seed)


def test_a_number_whose_write_may_have_happened_is_nobody_elses() -> None:
    """The answer to the first LOAD is lost, and its news are late; meanwhile its node is replaced by another."""

    async def story(stage: Stage) -> None:
        stage.delay = 20.0
        await stage.nodes("a")
        store = FaultyStore(stage.store, stage.rng, clock=stage.clock, faults=Faults(slowest=4.0))
        await stage.lead(store)
        store.script("txn", "lost", prefix=SLICE.prefix())
        store.script("event", "slow", prefix=SLICE.prefix(), times=2)
        async with stage.store.watch(SLICE.prefix()) as events:
            await stage.apply(spec(instances=1))
            await anext(aiter(events))
        await stage.die("a")
        await stage.nodes("b")
        await stage.until(lambda: stage.settled(spec(instances=1)), within=400)

    for seed in range(5):
        play(story, seed=seed)


@pytest.mark.parametrize("what", ["apply", "upgrade", "drain", "remove", "death"])
def test_a_leader_that_dies_at_any_transaction_is_followed_by_one_that_goes_on(what: str) -> None:
    """Every transaction of the leader in turn, before it is done and after: the end is the same."""
    old = (spec(instances=2), spec("org:db:1", instances=1))
    new = (spec("org:web:2", instances=2, needs=("org:db",)), spec("org:db:1", instances=1))

    async def begin(stage: Stage) -> None:
        await stage.nodes("a", "b")
        stage.delay = 0.03
        if what != "apply":
            await stage.lead()
            await stage.apply(*(new if what == "remove" else old))
            await stage.until(lambda: stage.settled(*(new if what == "remove" else old)))

    async def go(stage: Stage) -> tuple[SliceSpec, ...]:
        if what == "drain":
            await stage.lifecycle("a", Lifecycle.DRAINING)
        elif what == "death":
            await stage.die("a")
        elif what == "remove":
            await stage.remove()
            return ()
        else:
            await stage.apply(*new)
            return new
        return old

    def at(number: int, *, after: bool) -> bool:
        """Whether there was such a transaction."""
        died = []

        async def story(stage: Stage) -> None:
            await begin(stage)
            store = Crashing(stage.store, at=number, after=after)
            await stage.lead(store)
            wanted = await go(stage)

            async def over() -> bool:
                if store.died.is_set():
                    return True
                return await _is_over(stage, wanted, what)

            await stage.until(over)
            if store.died.is_set():
                died.append(number)
                await stage.lead()
            await stage.until(lambda: _is_over(stage, wanted, what))

        play(story, seed=number)
        return bool(died)

    number = 1
    while at(number, after=False):
        assert at(number, after=True)
        number += 1
    assert number > 2


async def _is_over(stage: Stage, wanted: tuple[SliceSpec, ...], what: str) -> bool:
    if what in ("drain", "death") and not await _empty(stage, "a"):
        return False
    if what == "remove":
        return not (await SLICE_OWNER.list(stage.store)).entries and not await stage.slices()
    phases = [await stage.deployment(one.base) for one in wanted]
    return await stage.settled(*wanted) and all(one is not None and one.phase is Phase.DONE for one in phases)


def test_a_blueprint_that_another_program_wrote_is_followed() -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a", "b")
        await stage.lead()
        await stage.store.txn([], [BLUEPRINT.put(Blueprint(slices=(spec(instances=2),)), blueprint="other")])
        await stage.until(lambda: stage.settled(spec(instances=2)))
        await stage.store.txn([], [BLUEPRINT.put(Blueprint(slices=(spec("org:web:2", 1),)), blueprint="other")])
        await stage.until(lambda: stage.settled(spec("org:web:2", instances=1)))
        await stage.store.txn([], [BLUEPRINT.delete(blueprint="other")])
        await stage.until(lambda: _gone(stage))
        assert not (await RETRIES.list(stage.store)).entries

    play(story)


def test_during_an_upgrade_the_version_before_too_waits_for_what_it_needs() -> None:
    """The slice that both versions need is lost in the middle of an upgrade."""

    async def story(stage: Stage) -> None:
        await stage.nodes("a", "b")
        await stage.lead()
        canary = Strategy(type=StrategyKind.CANARY, stages=(CanaryStage(weight=50, hold=3),))
        db, old = spec("org:db:1", 1), spec("org:web:1", 4, needs=("org:db",))
        new = spec("org:web:2", 4, needs=("org:db",), strategy=canary)
        await stage.apply(db, old)
        await stage.until(lambda: stage.settled(db, old))
        stage.ignores = lambda _node, artifact, _state: artifact == "org:db:1"
        ((node, number),) = await stage.ready("org:db:1")
        await stage.crash(node, "org:db:1", number)
        await stage.apply(db, new)

        async def upgrading() -> bool:
            deployment = await stage.deployment("org:web")
            return deployment is not None and deployment.previous == "org:web:1"

        await stage.until(upgrading)
        await stage.die("b")

        async def states() -> list[str]:
            return sorted(
                one.state for (_, artifact, _), one in (await stage.slices()).items() if artifact == "org:web:1"
            )

        async def replaced() -> bool:
            return await states() == ["ACTIVE", "ACTIVE", "LOADED", "LOADED"]

        await stage.until(replaced)
        await stage.clock.sleep(30)
        assert await replaced()
        stage.ignores = lambda _node, _artifact, _state: False

        async def whole() -> bool:
            return await states() == ["ACTIVE"] * 4

        await stage.until(whole, within=600)

    play(story)


def test_d39_dependencies_over_several_blueprints_start_first_and_go_last() -> None:
    """Three blueprints, each of which needs a slice of the next, are applied and deleted at once."""

    async def story(stage: Stage) -> None:
        await stage.nodes("a", "b")
        await stage.lead()
        wanted = {
            "front": spec("org:web:1", instances=2, needs=("org:api",)),
            "middle": spec("org:api:1", instances=2, needs=("org:db",)),
            "back": spec("org:db:1", instances=1),
        }
        moves: list[tuple[str, str]] = []

        async def noted() -> None:
            async with stage.store.watch(SLICE.prefix()) as events:
                async for event in events:
                    entry = None if event.type == "delete" else SLICE.entry(event.kv)
                    state = "gone" if entry is None else entry.value.state.value
                    moves.append((SLICE.parse(event.kv.key)["artifact"], state))

        noting = asyncio.create_task(noted())
        await stage.clock.sleep(0.01)
        for name, one in wanted.items():
            await stage.apply(one, name=name)
        await stage.until(lambda: stage.settled(*wanted.values()))
        first = [moves.index((one, "ACTIVE")) for one in ("org:db:1", "org:api:1", "org:web:1")]
        asked = [moves.index((one, "ACTIVATE")) for one in ("org:db:1", "org:api:1", "org:web:1")]
        assert first[0] < asked[1]
        assert first[1] < asked[2]

        moves.clear()
        for name in reversed(wanted):
            await stage.remove(name)

        async def gone() -> bool:
            return not (await SLICE_OWNER.list(stage.store)).entries

        await stage.until(gone)
        noting.cancel()
        for dependent, needed in (("org:web:1", "org:api:1"), ("org:api:1", "org:db:1")):
            left = max(at for at, move in enumerate(moves) if move == (dependent, "gone"))
            touched = min(at for at, (artifact, _) in enumerate(moves) if artifact == needed)
            assert left < touched, moves

    play(story)


def test_what_another_program_wrote_goes_in_the_same_order() -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a", "b")
        await stage.lead()
        pair = spec("org:a:1", instances=1), spec("org:b:1", instances=1, needs=("org:a",))
        await stage.store.txn([], [BLUEPRINT.put(Blueprint(slices=pair), blueprint="other")])
        await stage.until(lambda: stage.settled(*pair))
        await stage.store.txn([], [BLUEPRINT.delete(blueprint="other")])

        async def is_one_left() -> bool:
            left = await stage.slices()
            needed = [one.state for (_, artifact, _), one in left.items() if artifact == "org:a:1"]
            if len(left) == 2:
                assert needed == [S.ACTIVE]
            return len(left) == 1 and len(needed) == 1

        await stage.until(is_one_left)
        await stage.until(lambda: _gone(stage))

    play(story)


async def _gone(stage: Stage) -> bool:
    return not await stage.slices() and not (await DEPLOYMENT.list(stage.store)).entries


def test_a_record_that_cannot_be_read_is_left_alone_and_the_rest_goes_on() -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a", "b")
        await stage.store.put(SLICE.fill(node="a", artifact="org:web:1"), b"{")
        await stage.lead()
        await stage.apply(spec(instances=2))

        async def on_b() -> bool:
            entry = await SLICE.get(stage.store, node="b", artifact="org:web:1")
            return entry is not None and [one.state for one in entry.value.each().values()] == [S.ACTIVE] * 2

        await stage.until(on_b)

    play(story)


def test_an_upgrade_in_large_steps_goes_in_large_steps() -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a", "b", "c", "d")
        await stage.lead()
        strategy = Strategy(max_surge=20)
        await stage.apply(spec(instances=20))
        await stage.until(lambda: stage.settled(spec(instances=20)))
        began, stage.low = stage.clock.now(), {}
        await stage.apply(spec("org:web:2", instances=20, strategy=strategy))
        await stage.until(lambda: stage.settled(spec("org:web:2", instances=20)))
        assert stage.clock.now() - began < 4 + stage.limits.min_ready
        assert stage.low["org:web"] == 20

    play(story)
