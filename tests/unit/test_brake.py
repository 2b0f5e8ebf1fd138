"""The brake on mass failure: its decision over sets of nodes and instants, and what a leader does by it."""

from __future__ import annotations

import asyncio
import random
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any

import pytest
from controller_world import World, node, play
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hostler.engine.controllers.brake import (
    FENCE_EVERY,
    FEW,
    SETTLE,
    SHARE,
    WINDOW,
    failed_together,
    holding,
    reachable_before,
)
from hostler.engine.decision_recorder import Tracer
from hostler.keys.families import ALIVE, BRAKE, FENCING, MEMBER, TRACE
from hostler.model.node import BrakeRecord, Heartbeat, NodeRecord, OffConfirmation
from hostler.model.vm import MachineState, OnNodeLoss

if TYPE_CHECKING:
    from collections.abc import Iterable

RUNNING = MachineState.RUNNING
NAMES = [f"n{number}" for number in range(12)]
clusters = st.integers(1, 12).map(lambda size: NAMES[:size])
instants = st.one_of(st.none(), st.integers(0, 300).map(float))


@st.composite
def failures(draw: st.DrawFn) -> tuple[list[str], dict[str, float | None]]:
    nodes = draw(clusters)
    return nodes, draw(st.dictionaries(st.sampled_from(nodes), instants))


def too_many(nodes: list[str], unreachable: dict[str, float | None]) -> bool:
    """The rule, spelled out over every window that could matter."""
    if unreachable and len(unreachable) == len(nodes):
        return True
    known = [at for at in unreachable.values() if at is not None]
    unknown = len(unreachable) - len(known)
    for start in (*known, 1_000.0):
        inside = unknown + sum(start <= at <= start + WINDOW for at in known)
        reachable = len(nodes) - sum(at < start for at in known)
        if inside > FEW and inside > SHARE * reachable:
            return True
    return False


# The decision


@given(failures())
def test_the_brake_holds_exactly_when_too_many_nodes_failed_within_one_window(
    failed: tuple[list[str], dict[str, float | None]],
) -> None:
    nodes, unreachable = failed
    found = failed_together(nodes, unreachable)
    assert bool(found) == too_many(nodes, unreachable)
    assert found <= unreachable.keys()


@given(failures(), st.data())
def test_one_more_failure_or_a_forgotten_instant_never_lets_the_brake_go(
    failed: tuple[list[str], dict[str, float | None]], data: st.DataObject
) -> None:
    nodes, unreachable = failed
    node = data.draw(st.sampled_from(nodes))
    if failed_together(nodes, unreachable):
        assert failed_together(nodes, {**unreachable, node: None})


@given(failures(), st.floats(-1e6, 1e6))
def test_the_decision_does_not_depend_on_where_the_clock_began(
    failed: tuple[list[str], dict[str, float | None]], shift: float
) -> None:
    nodes, unreachable = failed
    shifted = {node: None if at is None else at + round(shift) for node, at in unreachable.items()}
    assert failed_together(nodes, shifted) == failed_together(nodes, unreachable)


@given(failures())
def test_what_one_leader_recorded_holds_for_the_next_and_a_release_covers_just_that(
    failed: tuple[list[str], dict[str, float | None]],
) -> None:
    nodes, unreachable = failed
    group = failed_together(nodes, unreachable)
    record = BrakeRecord(nodes=tuple(sorted(group)), of=len(nodes), at=0.0)
    if not group:
        return
    scattered = {node: 1_000.0 * number for number, node in enumerate(unreachable)}
    assert holding(nodes, scattered, record) >= group, "also if the next leader has other instants"
    released = replace(record, released_by="op", released_at=1.0)
    only = {node: at for node, at in unreachable.items() if node in group}
    assert not holding(nodes, only, released)


@pytest.mark.parametrize(
    ("nodes", "failed", "held"),
    [
        (1, [0], True),
        (2, [0], False),
        (2, [0, 0], True),
        (2, [0, 500], True),
        (5, [0], False),
        (5, [0, 0], False),
        (5, [0, 30, 60], True),
        (5, [0, 30, 61], False),
        (5, [0, 100, 200, 300], False),
        (9, [0, 0, 0], False),
        (9, [0, 0, 0, 0], True),
        (9, [0, 0, 0, 100, 100, 100], True),
    ],
)
def test_examples(nodes: int, failed: list[int], held: bool) -> None:
    unreachable = {NAMES[number]: float(at) for number, at in enumerate(failed)}
    assert bool(failed_together(NAMES[:nodes], unreachable)) is held


@given(failures(), st.integers(0, 30), st.data())
def test_nodes_that_join_and_failed_nodes_that_are_removed_never_end_the_brake(
    failed: tuple[list[str], dict[str, float | None]], joined: int, data: st.DataObject
) -> None:
    nodes, unreachable = failed
    group = failed_together(nodes, unreachable)
    if not group:
        return
    record = BrakeRecord(nodes=tuple(sorted(group)), of=len(nodes), at=0.0)
    removed = data.draw(st.sets(st.sampled_from(sorted(group)), max_size=len(group) - 1))
    now = [node for node in nodes if node not in removed] + [f"new{number}" for number in range(joined)]
    left = {node: at for node, at in unreachable.items() if node not in removed}
    assert holding(now, left, record) >= group - removed
    assert holding(now, left, record) <= left.keys(), "a removed node holds nothing by itself"
    assert not holding(now, {}, record), "all others are back"


# A leader


class Switch:
    def __init__(self, world: World) -> None:
        self.world, self.cut = world, []  # type: ignore[var-annotated]

    async def switch_off(self, node: str) -> bool:
        self.cut.append((node, self.world.clock.now()))
        for vm_id in self.world.nodes[node].machines:
            self.world.stopped(node, vm_id)
        return True


def tracer(world: World) -> Tracer:
    numbers = count()
    return Tracer(world.clock, lambda: f"{next(numbers)}", "test")


async def cluster(world: World, size: int, **changes: Any) -> list[str]:
    """Each node has a machine."""
    names = [f"n{number}" for number in range(size)]
    for name in names:
        await world.node(name, rack="r1", store="etcd://10.0.0.1:2379", **changes)
    for name in names:
        await world.create(f"vm-{name}", on_node_loss=OnNodeLoss.FENCE)
    for name in names:
        await world.until_state(f"vm-{name}", RUNNING)
    return names


async def cut_off(world: World, names: Iterable[str]) -> None:
    for name in names:
        await world.nodes[name].fall_silent()


async def members(world: World) -> list[NodeRecord]:
    return [entry.value for entry in (await MEMBER.list(world.raw)).entries]


async def brake(world: World) -> BrakeRecord | None:
    entry = await BRAKE.get(world.raw, scope=FENCING)
    return None if entry is None else entry.value


async def places(world: World) -> dict[str, str]:
    found = {}
    for vm in await world.keys("/plasmavmc/vms/"):
        handle = await world.handle(vm.rpartition("/")[2])
        assert handle is not None
        found[handle.id] = handle.node
    return found


async def release(world: World) -> None:
    entry = await BRAKE.get(world.raw, scope=FENCING)
    assert entry is not None
    await BRAKE.replace(world.raw, entry, replace(entry.value, released_by="op", released_at=1.0))


def test_when_all_agents_are_cut_off_nothing_is_switched_off_or_taken_and_the_cause_is_named() -> None:
    async def story(world: World) -> None:
        switch = Switch(world)
        leader = await world.leader(power=switch, tracer=tracer(world))
        names = await cluster(world, 5)
        before = await places(world)
        await cut_off(world, names)
        await asyncio.sleep(15 + SETTLE + 2)
        held = await brake(world)
        assert held is not None
        assert set(held.nodes) == set(names)
        assert held.cause.endswith("all of them agents of store endpoint etcd://10.0.0.1:2379")
        traces = [entry.value for entry in (await TRACE.list(world.raw)).entries]
        assert next(one.why for one in traces if one.what == "brake").startswith("5 of 5 nodes became unreachable")
        assert any(line.startswith("brake: 5 of 5 nodes") for line in leader.told)
        await asyncio.sleep(600)
        assert switch.cut == []
        assert await places(world) == before
        await world.nodes["n0"].join()
        await asyncio.sleep(3)
        held = await brake(world)
        assert held is not None
        assert held.nodes == ("n1", "n2", "n3", "n4"), "one is back"
        for name in names[1:]:
            await world.nodes[name].join()
        await asyncio.sleep(5)
        assert await brake(world) is None, "it ends by itself"
        assert await places(world) == before
        assert switch.cut == []

    play(story)


def test_one_node_of_five_is_fenced_as_before() -> None:
    async def story(world: World) -> None:
        switch = Switch(world)
        await world.leader(power=switch)
        await cluster(world, 5)
        began = world.clock.now()
        await cut_off(world, ["n0"])
        await world.until(lambda: _is_away(world, "n0"))
        assert [name for name, _ in switch.cut] == ["n0"]
        assert world.clock.now() - began < 15 + 30 + 5
        assert await brake(world) is None

    play(story)


async def _is_away(world: World, *nodes: str) -> bool:
    return not set(nodes) & {"", *(await places(world)).values()}


def test_nodes_are_fenced_one_at_a_time() -> None:
    async def story(world: World) -> None:
        switch = Switch(world)
        await world.leader(power=switch)
        await cluster(world, 12)
        await cut_off(world, ["n0", "n1", "n2", "n3"])
        await world.until(lambda: _is_away(world, "n0", "n1", "n2", "n3"))
        times = sorted(at for _, at in switch.cut)
        assert len(times) == 4
        assert all(after - before >= FENCE_EVERY for before, after in pairwise(times))

    play(story)


def test_without_power_control_fenced_machines_of_many_nodes_stay_too() -> None:
    async def story(world: World) -> None:
        await world.leader()
        await cluster(world, 6)
        before = await places(world)
        await cut_off(world, ["n0", "n1", "n2"])
        await asyncio.sleep(300)
        assert await places(world) == before
        # An operator who looked at one of them decides for that one.
        await world.confirm_off("n0")
        await world.until(lambda: _is_away(world, "n0"))
        after = await places(world)
        assert [vm for vm in before if before[vm] in ("n1", "n2")] == [vm for vm in after if after[vm] in ("n1", "n2")]

    play(story)


def test_what_a_power_switch_said_before_the_brake_held_takes_no_machine_while_it_does() -> None:
    async def story(world: World) -> None:
        await world.leader()
        await cluster(world, 6)
        await cut_off(world, ["n0", "n1", "n2"])
        await asyncio.sleep(25)
        before = await places(world)
        await world.member("n0", off=OffConfirmation(by="hostler", at=0.0))
        await asyncio.sleep(120)
        assert await places(world) == before

    play(story)


def test_an_operator_releases_the_brake_for_the_nodes_that_hold_it() -> None:
    async def story(world: World) -> None:
        switch = Switch(world)
        await world.leader(power=switch)
        names = await cluster(world, 9)
        await cut_off(world, names[:4])
        await asyncio.sleep(120)
        assert switch.cut == []
        await release(world)
        await world.until(lambda: _is_away(world, *names[:4]))
        assert {name for name, _ in switch.cut} == set(names[:4])
        await cut_off(world, names[4:7])
        await asyncio.sleep(300)
        assert {name for name, _ in switch.cut} == set(names[:4]), "further nodes hold it again"
        held = await brake(world)
        assert held is not None
        assert not held.released

    play(story)


def test_a_change_of_leader_keeps_the_brake() -> None:
    async def story(world: World) -> None:
        switch = Switch(world)
        first = await world.leader(power=switch)
        names = await cluster(world, 6)
        before = await places(world)
        await cut_off(world, names[:3])
        await asyncio.sleep(30)
        assert await brake(world) is not None
        await first.end()
        world.leaders.remove(first)
        # One is back: two of six would be no mass failure for who knew nothing of the third, and that is not known.
        await world.leader("l2", power=switch)
        await asyncio.sleep(300)
        assert switch.cut == []
        assert await places(world) == before
        await world.nodes[names[0]].join()
        await asyncio.sleep(3)
        assert await brake(world) is None
        await asyncio.sleep(WINDOW / 2)
        assert switch.cut == [], "the others get time to come back, too"
        await world.until(lambda: _is_away(world, *names[1:3]), within=200)
        assert {name for name, _ in switch.cut} == set(names[1:3])

    play(story)


def test_joins_and_removals_do_not_end_the_brake() -> None:
    async def story(world: World) -> None:
        switch = Switch(world)
        await world.leader(power=switch)
        names = await cluster(world, 6)
        before = await places(world)
        await cut_off(world, names[:3])
        await asyncio.sleep(30)
        assert await brake(world) is not None
        for number in range(6):  # three of twelve would be no mass failure
            await world.node(f"new{number}", rack="r1", store="etcd://10.0.0.1:2379")
        await asyncio.sleep(120)
        assert switch.cut == []
        await world.raw.delete(MEMBER.fill(node=names[0]))  # two would be none either
        await asyncio.sleep(120)
        held = await brake(world)
        assert held is not None
        assert (held.nodes, held.of) == (("n0", "n1", "n2"), 6)
        await cut_off(world, [names[3]])
        await asyncio.sleep(120)
        held = await brake(world)
        assert held is not None
        assert (held.nodes, held.of) == (("n0", "n1", "n2", "n3"), 6), "a further one adds to what is recorded"
        assert switch.cut == []
        assert (await places(world)).items() >= {(vm, node) for vm, node in before.items() if node != "n0"}
        for name in names[1:4]:
            await world.nodes[name].join()
        await asyncio.sleep(5)
        assert await brake(world) is None, "all nodes that exist are back"

    play(story)


def test_a_new_leader_that_finds_many_nodes_unreachable_holds_the_brake() -> None:
    async def story(world: World) -> None:
        switch = Switch(world)
        first = await world.leader(power=switch)
        names = await cluster(world, 6)
        before = await places(world)
        await first.end()
        world.leaders.remove(first)
        await cut_off(world, names[:3])
        await asyncio.sleep(60)
        await world.leader("l2", power=switch)
        await asyncio.sleep(300)
        assert switch.cut == []
        assert await places(world) == before

    play(story)


def test_nodes_that_died_long_ago_one_by_one_do_not_hold_it_after_a_change_of_leader() -> None:
    async def story(world: World) -> None:
        switch = Switch(world)
        first = await world.leader(power=switch, tracer=tracer(world))
        names = await cluster(world, 8)
        for name in names[:4]:
            await cut_off(world, [name])
            await asyncio.sleep(200)
        assert {name for name, _ in switch.cut} == set(names[:4])
        await first.end()
        world.leaders.remove(first)
        await world.leader("l2", power=switch, tracer=tracer(world))
        await cut_off(world, [names[4]])
        await world.until(lambda: _is_away(world, *names[:5]), within=200)
        assert await brake(world) is None

    play(story)


def test_a_machine_that_its_owner_deletes_is_forgotten_while_the_brake_holds() -> None:
    async def story(world: World) -> None:
        await world.leader()
        names = await cluster(world, 3)
        await cut_off(world, names)
        await asyncio.sleep(120)
        await world.change("vm-n0", deleting=True)

        async def gone() -> bool:
            return await world.handle("vm-n0") is None

        await world.until(gone)

    play(story)


@pytest.mark.parametrize("size", [1, 2])
def test_in_a_small_cluster_the_last_node_is_not_switched_off(size: int) -> None:
    async def story(world: World) -> None:
        switch = Switch(world)
        await world.leader(power=switch)
        names = await cluster(world, size)
        await cut_off(world, names)
        await asyncio.sleep(300)
        assert switch.cut == []
        assert all(one.off is None for one in await members(world))
        assert (await ALIVE.list(world.raw)).entries == ()

    play(story, seed=random.Random(size).randrange(100))


@given(failures(), st.integers(0, 40), st.data())
def test_only_nodes_that_return_let_the_brake_go(
    failed: tuple[list[str], dict[str, float | None]], joined: int, data: st.DataObject
) -> None:
    """Not those that join, nor those that are removed, also not if they were unreachable for long before."""
    nodes, unreachable = failed
    group = failed_together(nodes, unreachable)
    if not group:
        return
    record = BrakeRecord(nodes=tuple(sorted(group)), of=reachable_before(nodes, unreachable, group), at=0.0)
    removed = data.draw(st.sets(st.sampled_from(nodes)))
    there = {*nodes, *(f"new{number}" for number in range(joined))} - removed
    out = {node: at for node, at in unreachable.items() if node not in removed}
    left = group - removed
    assert holding(there, out, record) >= left


def test_nodes_that_were_lost_long_before_do_not_count_when_they_are_removed() -> None:
    lost: dict[str, float | None] = {f"old{number}": -10_000.0 * (number + 1) for number in range(6)}
    healthy = ["a", "b", "c"]
    failed: dict[str, float | None] = {"d": 0.0, "e": 1.0, "f": 2.0}
    nodes = [*lost, *healthy, *failed]
    group = failed_together(nodes, {**lost, **failed})
    assert group == failed.keys()
    of = reachable_before(nodes, {**lost, **failed}, group)
    assert of == 6
    record = BrakeRecord(nodes=("d", "e", "f"), of=of, at=0.0)
    grown = [*healthy, *failed, *(f"new{number}" for number in range(12))]
    assert holding(grown, failed, record) == failed.keys(), "the six were removed and twelve joined; none is back"
    assert not holding(grown, {"d": 0.0, "e": 1.0}, record), "one is back"


@pytest.mark.parametrize("gone", [True, False], ids=["the old ones are removed", "the old ones stay"])
def test_nodes_that_were_lost_long_before_neither_end_the_brake_nor_hold_it(gone: bool) -> None:
    """It ended when they were removed and others joined; and if they stayed, it held on after the others were back."""
    old, healthy, failed = ([f"{kind}{number}" for number in range(n)] for kind, n in (("o", 6), ("h", 3), ("f", 3)))

    async def story(world: World) -> None:
        async def join(name: str) -> None:
            beat = ALIVE.put(Heartbeat(holder=name, started_at=0.0), node=name)
            await world.raw.txn([], [MEMBER.put(node(name), node=name), beat])

        async def remove(name: str) -> None:
            await world.raw.txn([], [MEMBER.delete(node=name)])

        for name in (*old, *healthy, *failed):
            await join(name)
        leader = await world.leader(tracer=tracer(world))
        for name in old:
            await world.raw.delete(ALIVE.fill(node=name))
            await asyncio.sleep(WINDOW + 5)
        assert await BRAKE.get(world.raw, scope=FENCING) is None
        for name in failed:
            await world.raw.delete(ALIVE.fill(node=name))
        await asyncio.sleep(SETTLE + 5)
        record = await BRAKE.get(world.raw, scope=FENCING)
        assert record is not None
        assert (record.value.nodes, record.value.of) == (tuple(failed), 6)
        for number in range(12):
            await join(f"new{number}")
        if gone:
            for name in old:
                await remove(name)
        await asyncio.sleep(30)
        assert not any(leader.brake.may_fence(name) for name in failed), "none of them is back"
        await leader.end()
        leader = await world.leader("next", tracer=tracer(world))
        await asyncio.sleep(30)
        assert not any(leader.brake.may_fence(name) for name in failed), "nor are they for the next leader"
        await join(failed[0])
        await asyncio.sleep(WINDOW + 5)
        assert await BRAKE.get(world.raw, scope=FENCING) is None, "nodes that were lost before do not hold it"

    play(story)
