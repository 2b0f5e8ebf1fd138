"""What the leader makes good again: what others wrote by hand, what nodes left undone, what went wrong halfway."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from dose import seeds

from hostler.engine.deployments.decide import NO_NEED, UNTAKEN
from hostler.engine.deployments.instance_index import Numbers
from hostler.engine.deployments.state_machine import Limits, changed_record
from hostler.engine.slices.decide import LEFT
from hostler.keys.families import BLUEPRINT, ENDPOINT, MEMBER, RETRIES, SLICE
from hostler.model.deployment import Blueprint, SliceState, Strategy
from hostler.model.node import Lifecycle
from hostler.model.rollout import Phase, Retries
from hostler.ports.store import Put

from . import slice_stage
from .slice_stage import Stage, play, spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.model.deployment import SliceSpec
    from hostler.model.rollout import SliceDecision

S = SliceState


# Numbers


def test_numbers_that_come_back_to_who_never_gave_them_leave_no_gap() -> None:
    numbers = Numbers()
    for number in range(2, 8):
        numbers.give_back(number)
    assert numbers.take(9) == list(range(1, 10))


def test_a_number_that_was_used_and_dropped_while_it_was_taken_is_free_once() -> None:
    numbers = Numbers()
    (one,) = numbers.take(1)
    numbers.use(one)
    numbers.drop(one)
    assert numbers.take(1) == [2]
    numbers.give_back(one)
    assert [numbers.take(1), numbers.take(1)] == [[1], [3]]


class _Held:
    """A store that holds back what loads, while it is told to."""

    def __init__(self, store: Any, *, pause: Callable[[], float] | None = None, clock: Any = None) -> None:
        self._store, self._pause, self._clock = store, pause, clock
        self.hold: asyncio.Event | None = None
        self.held = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def txn(self, when: Any, then: Any, otherwise: Any = ()) -> Any:
        if self._pause is not None:
            await self._clock.sleep(self._pause())
        loads = (b'"LOAD"' in getattr(one, "value", b"") for one in then if one.key.startswith(SLICE.prefix()))
        if self.hold is not None and any(loads):
            self.held.set()
            await self.hold.wait()
        return await self._store.txn(when, then, otherwise)


def test_numbers_stay_unique_though_the_last_instance_goes_while_others_are_loaded() -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a")
        store = _Held(stage.store)
        await stage.lead(store)
        await stage.apply(spec(instances=1))
        await stage.until(lambda: stage.settled(spec(instances=1)))
        stage.ignores = lambda _node, _artifact, state: state is S.UNLOADING
        await stage.remove()

        async def goes() -> bool:
            return [one.state for one in (await stage.slices()).values()] == [S.UNLOADING]

        await stage.until(goes)
        await stage.nodes("b", "c", "d")
        hold = store.hold = asyncio.Event()
        await stage.apply(spec(instances=6))
        await asyncio.wait_for(store.held.wait(), 60)
        await stage.store.txn([], [SLICE.delete(node="a", artifact="org:web:1")])
        stage.ignores = lambda _node, _artifact, _state: False
        await stage.apply(spec(instances=12))
        await stage.clock.sleep(0.5)
        store.hold = None
        hold.set()
        await stage.until(lambda: stage.settled(spec(instances=12)))
        assert sorted(number for _, number in await stage.ready("org:web:1")) == list(range(1, 13))

    play(story)


def test_numbers_stay_unique_whatever_is_applied_and_removed() -> None:
    for seed in seeds(test=2, pool=6, full=150):
        rng = random.Random(seed)

        async def story(stage: Stage, rng: random.Random = rng) -> None:
            await stage.nodes("a", "b")
            await stage.lead(_Held(stage.store, pause=lambda: rng.uniform(0, 0.25), clock=stage.clock))
            there = False
            for _ in range(60):
                await stage.clock.sleep(rng.uniform(0.05, 1.2))
                if there and rng.random() < 0.5:
                    await stage.remove()
                    there = False
                else:
                    await stage.apply(spec(instances=rng.randint(1, 8)))
                    there = True
            assert stage.wrong == []

        play(story, seed=seed)


def test_nothing_is_kept_of_versions_that_are_gone() -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a", "b")
        await stage.lead()
        for version in range(1, 4):
            await stage.apply(spec(f"org:web:{version}", strategy=Strategy(max_surge=3)))
            await stage.until(lambda v=version: _done(stage, f"org:web:{v}"))  # type: ignore[misc]
            await stage.until(lambda v=version: stage.settled(spec(f"org:web:{v}")))  # type: ignore[misc]
        assert stage.view is not None
        assert list(stage.view.fleet.roster("org:web").numbers) == ["org:web:3"]

    play(story)


async def _done(stage: Stage, artifact: str) -> bool:
    deployment = await stage.deployment("org:web")
    return deployment is not None and deployment.phase is Phase.DONE and deployment.artifact == artifact


async def _where(stage: Stage, artifact: str = "org:web:1") -> Counter[str]:
    return Counter(node for node, _ in await stage.ready(artifact))


# Blueprints that were written by hand


async def _by_hand(stage: Stage, *specs: SliceSpec, name: str = "hand") -> None:
    await stage.store.txn([], [BLUEPRINT.put(Blueprint(slices=specs), blueprint=name)])


def test_a_blueprint_by_hand_that_cannot_be_read_any_more_takes_nothing_down() -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a", "b")
        await stage.lead()
        await _by_hand(stage, spec(instances=3))
        await stage.until(lambda: stage.settled(spec(instances=3)))
        key = BLUEPRINT.fill(blueprint="hand")
        await stage.store.txn([], [Put(key, b'{"slices":[{"artifact":"org:web:1","instances":0}]}')])
        for _ in range(2):
            await stage.clock.sleep(40)
            assert await stage.settled(spec(instances=3))
            await stage.lead()
        await _by_hand(stage, spec(instances=2))
        await stage.until(lambda: stage.settled(spec(instances=2)))
        await stage.store.txn([], [BLUEPRINT.delete(blueprint="hand")])
        await stage.until(stage.settled)

    play(story)


def test_a_second_blueprint_by_hand_does_not_take_a_slice_from_the_first() -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a", "b")
        await stage.lead()
        await _by_hand(stage, spec(instances=3), name="shop")
        await stage.until(lambda: stage.settled(spec(instances=3)))
        await _by_hand(stage, spec("org:web:9", instances=1), name="aaa")
        await stage.clock.sleep(40)
        assert await stage.settled(spec(instances=3))
        await stage.store.txn([], [BLUEPRINT.delete(blueprint="shop")])
        await stage.until(lambda: stage.settled(spec("org:web:9", instances=1)))

    play(story)


# Nodes that are to be left


def test_a_drain_goes_on_while_an_upgrade_waits_and_nothing_is_missing_meanwhile() -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a", "b", "c")
        await stage.lead()
        await stage.apply(spec(instances=3))
        await stage.until(lambda: stage.settled(spec(instances=3)))
        gpu = spec("org:c:1", instances=1, node_labels={"gpu": "yes"})
        await stage.apply(spec("org:web:2", instances=3, needs=("org:c",)), gpu)
        await stage.clock.sleep(30)
        stage.low, stage.most = {}, {}
        await stage.lifecycle("a", Lifecycle.DRAINING)
        await stage.until(lambda: _left(stage, "a"))
        await stage.clock.sleep(60)
        assert (await _where(stage)).total() == 3
        assert stage.low["org:web"] == 3
        assert stage.most["org:web"] <= 6
        await stage.nodes("g", labels={"gpu": "yes"})
        await stage.until(lambda: stage.settled(spec("org:web:2", instances=3), spec("org:c:1", instances=1)))

    play(story)


async def _left(stage: Stage, *nodes: str) -> bool:
    return not any(node in nodes for node, _, _ in await stage.slices())


def test_a_drain_that_waits_for_what_others_need_is_told_of() -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a", "b")
        await stage.lead()
        wanted = (spec(instances=2, needs=("org:c",)), spec("org:c:1", instances=1))
        await stage.apply(*wanted)
        await stage.until(lambda: stage.settled(*wanted))
        stage.refuses = lambda _node, artifact, state: (
            "no" if artifact == "org:c:1" and state in {S.LOADED, S.ACTIVE} else ""
        )
        ((node, number),) = await stage.ready("org:c:1")
        await stage.crash(node, "org:c:1", number)
        await stage.clock.sleep(5)
        await stage.lifecycle("a", Lifecycle.DRAINING)

        async def told() -> bool:
            decision = await stage.decision("org:web:1")
            return decision is not None and any(NO_NEED in one.why for one in decision.passed_over)

        await stage.until(told)
        assert any(NO_NEED in line for line in stage.told)

    play(story)


def test_what_is_on_nodes_that_have_not_the_labels_moves_one_at_a_time() -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a", "b")
        await stage.nodes("g", labels={"gpu": "yes"})
        await stage.lead()
        await stage.apply(spec(instances=3))
        await stage.until(lambda: stage.settled(spec(instances=3)))
        stage.low, stage.most = {}, {}
        labelled = spec(instances=3, node_labels={"gpu": "yes"})
        await stage.apply(labelled)

        async def only(*nodes: str) -> bool:
            return set(await _where(stage)) == set(nodes) and await stage.settled(labelled)

        await stage.until(lambda: only("g"))
        assert stage.low["org:web"] == 3
        assert stage.most["org:web"] <= 5
        for name, labels in (("a", {"gpu": "yes"}), ("g", {})):
            entry = await MEMBER.get(stage.store, node=name)
            assert entry is not None
            await MEMBER.replace(stage.store, entry, msgspec.structs.replace(entry.value, labels=labels))
        await stage.until(lambda: only("a"))
        entry = await MEMBER.get(stage.store, node="a")
        assert entry is not None
        await MEMBER.replace(stage.store, entry, msgspec.structs.replace(entry.value, labels={}))
        await stage.clock.sleep(60)
        assert await only("a")
        assert any("lack labels" in one.why for one in (await _decision(stage)).passed_over)

    play(story)


async def _decision(stage: Stage, artifact: str = "org:web:1") -> SliceDecision:
    found = await stage.decision(artifact)
    assert found is not None
    return found


# What others wrote


@pytest.mark.parametrize("state", [S.ACTIVE, S.LOADED, S.LOAD])
def test_one_of_two_instances_with_the_same_number_goes(state: SliceState) -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a", "b", "c")
        await stage.lead()
        await stage.apply(spec(instances=2))
        await stage.until(lambda: stage.settled(spec(instances=2)))
        (free,) = {"a", "b", "c"} - {node for node, _ in await stage.ready("org:web:1")}
        foreign = b'{"state":"%s","timestamp":%d}' % (state.value.encode(), stage.clock.wall())
        await stage.store.txn([], [Put(SLICE.fill(node=free, artifact="org:web:1"), foreign)])

        async def unique() -> bool:
            stage.wrong = []
            return await stage.settled(spec(instances=2))

        await stage.clock.sleep(1)
        await stage.until(unique)
        assert len({number for _, number in await stage.ready("org:web:1")}) == 2
        assert any("same number" in line for line in stage.told)

    play(story)


def test_a_dead_nodes_record_that_nobody_can_read_goes_too() -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a", "b")
        await stage.lead()
        await stage.apply(spec(instances=2))
        await stage.until(lambda: stage.settled(spec(instances=2)))
        key = SLICE.fill(node="x", artifact="org:web:1")
        await stage.store.txn([], [Put(key, b'{"state":"BROKEN"}')])
        await stage.until(lambda: _gone(stage, key))
        await stage.until(lambda: stage.settled(spec(instances=2)))

    play(story)


async def _gone(stage: Stage, key: str) -> bool:
    return not (await stage.store.range(key)).items


def test_a_key_without_any_instance_goes_whoever_leads() -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a")
        key = SLICE.fill(node="a", artifact="org:old:1")
        empty = Put(key, b'{"state":"LOAD","timestamp":1,"instances":{}}')
        await stage.store.txn([], [empty])
        await stage.lead()
        await stage.until(lambda: _gone(stage, key))
        await stage.store.txn([], [empty])
        await stage.until(lambda: _gone(stage, key))
        assert stage.view is not None
        assert stage.view.fleet.count_on("a") == 0

    play(story)


def test_failures_that_a_clock_ahead_has_counted_hold_nothing_up() -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a")
        day = stage.clock.wall() + 86_400
        ahead = Retries(failures=1, total=1, not_before=day + 100, at=day, why="a: no")
        await stage.store.txn([], [RETRIES.put(ahead, artifact="org:web:1")])
        await stage.lead()
        await stage.apply(spec(instances=2))
        await stage.until(lambda: stage.settled(spec(instances=2)))
        retries = await stage.retries("org:web:1")
        assert retries is None or retries.at < day

    play(story)


def test_what_somebody_says_by_hand_is_tried_as_if_nothing_had_failed_before() -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a", "b")
        await stage.lead()
        await stage.apply(spec(instances=2))
        await stage.until(lambda: stage.settled(spec(instances=2)))
        stage.refuses = lambda _node, artifact, state: "no" if (artifact, state) == ("org:web:2", S.LOADED) else ""
        await _by_hand(stage, spec("org:web:2", instances=2), name="shop")

        async def given_up() -> bool:
            retries = await stage.retries("org:web:2")
            return retries is not None and retries.given_up and await stage.settled(spec(instances=2))

        await stage.until(given_up)
        await _by_hand(stage, spec(instances=2), name="shop")
        await stage.until(lambda: _done(stage, "org:web:1"))
        assert await stage.retries("org:web:2") is None

    play(story)


# What nodes leave undone


def test_what_is_not_ready_for_long_and_nobody_tends_to_it_is_replaced() -> None:
    async def story(stage: Stage) -> None:
        stage.limits = Limits(loading=4.0, activating=2.0)
        await stage.nodes("a", "b")
        await stage.lead()
        await stage.apply(spec(instances=2))
        await stage.until(lambda: stage.settled(spec(instances=2)))
        await stage.clock.sleep(100)  # how long it was active does not matter
        ((node, number), _) = await stage.ready("org:web:1")

        async def not_ready(restarts: int) -> None:
            entry = await SLICE.get(stage.store, node=node, artifact="org:web:1")
            assert entry is not None
            down = msgspec.structs.replace(entry.value.each()[number], ready=False, restarts=restarts)
            record = changed_record(entry.value, {number: down}, at=stage.clock.wall())
            assert record is not None
            await SLICE.replace(stage.store, entry, record)

        for restarts in range(3):  # its node does something about it
            await not_ready(restarts)
            await stage.clock.sleep(12)
        assert len(await stage.ready("org:web:1")) == 1
        assert (await stage.slices())[node, "org:web:1", number].state is S.ACTIVE
        await stage.until(lambda: stage.settled(spec(instances=2)), within=60)
        await stage.until(lambda: _all_ready(stage, 2), within=60)

    play(story)


async def _all_ready(stage: Stage, count: int) -> bool:
    return len(await stage.ready("org:web:1")) == count


def test_more_endpoints_than_fit_into_a_transaction_are_withdrawn_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slice_stage, "METHODS", tuple(f"m{number}" for number in range(40)))

    async def story(stage: Stage) -> None:
        await stage.nodes("a")
        await stage.lead()
        await stage.apply(spec(instances=3))
        await stage.until(lambda: stage.settled(spec(instances=3)))
        stage.ignores = lambda _node, _artifact, _state: True
        entry = await SLICE.get(stage.store, node="a", artifact="org:web:1")
        assert entry is not None
        failed = {
            number: msgspec.structs.replace(one, state=S.FAILED, why="x") for number, one in entry.value.each().items()
        }
        record = changed_record(entry.value, failed, at=stage.clock.wall())
        assert record is not None
        await SLICE.replace(stage.store, entry, record)

        async def told() -> bool:
            return [one.state for one in (await stage.slices()).values()][:3] == [S.UNLOAD] * 3

        await stage.until(told)
        assert not (await ENDPOINT.list(stage.store)).entries

    play(story)


def test_a_node_that_leaves_commands_where_they_are_gets_no_more_for_a_while_and_it_is_told() -> None:
    async def story(stage: Stage) -> None:
        stage.limits = Limits(loading=2.0, activating=1.0, deactivating=1.0, unloading=2.0)
        await stage.nodes("a", "b")
        stage.ignores = lambda node, _artifact, _state: node == "a"
        await stage.lead()
        await stage.apply(spec(instances=4))

        async def on_b() -> bool:
            return await _where(stage) == {"b": 4}

        await stage.until(on_b)
        assert any(
            one.subject == "a" and "not carried out commands" in one.why for one in (await _decision(stage)).passed_over
        )
        await stage.apply(spec(instances=4), spec("org:db:1", instances=4))

        async def db_on_b() -> bool:
            return await _where(stage, "org:db:1") == {"b": 4}

        await stage.until(db_on_b, within=5)
        await stage.clock.sleep(20)
        left = [one for (node, _, _), one in (await stage.slices()).items() if node == "a"]
        assert [one.state for one in left] == [S.UNLOAD] * 2
        assert all(one.why.startswith(UNTAKEN) for one in left)
        assert sum(UNTAKEN in line for line in stage.told) == 2, "once of each"

    play(story)


def test_an_upgrade_that_goes_on_empties_a_drained_node_and_loads_nothing_of_the_old_version() -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a", "b", "c")
        await stage.lead()
        await stage.apply(spec(instances=3))
        await stage.until(lambda: stage.settled(spec(instances=3)))
        await stage.apply(spec("org:web:2", instances=3))
        await stage.lifecycle("a", Lifecycle.DRAINING)
        old: dict[int, None] = {}

        async def over() -> bool:
            old.update((number, None) for _, artifact, number in await stage.slices() if artifact == "org:web:1")
            return await _left(stage, "a") and await stage.settled(spec("org:web:2", instances=3))

        await stage.until(over)
        assert set(old) == {1, 2, 3}

    play(story)


# Restarts


@pytest.mark.parametrize(("why", "counted"), [(LEFT, 0), ("start raised", 1)])
def test_what_went_with_its_agent_did_not_fail(why: str, counted: int) -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a", "b", "c")
        await stage.lead()
        await stage.apply(spec(instances=3))
        await stage.until(lambda: stage.settled(spec(instances=3)))
        ((node, number), *_) = await stage.ready("org:web:1")
        await stage.crash(node, "org:web:1", number, why)
        await stage.until(lambda: stage.settled(spec(instances=3)))
        retries = await stage.retries("org:web:1")
        assert (0 if retries is None else retries.total) == counted

    play(story)
