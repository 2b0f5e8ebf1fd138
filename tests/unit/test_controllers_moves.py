"""The leader lets machines go to other nodes, and gives up what cannot arrive."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from controller_world import World, ids, play

from hostler.engine.controllers.decision import Act, NodeCase, decide, first_command
from hostler.engine.controllers.migration import Way, arrival, end_reason, handle_after_end, handover_command, unfit
from hostler.keys.families import ARRIVAL
from hostler.keys.families import HANDLE as HANDLE_KEY
from hostler.model.inventory import Capacity
from hostler.model.node import Arrival, Departure, DrainMode, Lifecycle, NodeRecord, VmCommand
from hostler.model.vm import (
    MachineState,
    Move,
    Origin,
    Power,
    Snapshot,
    SnapshotState,
    VirtualMachine,
    VmHandle,
    VmSpec,
)

RUNNING = MachineState.RUNNING
replace = msgspec.structs.replace
VM = VirtualMachine(
    id="v",
    name="web",
    org="o",
    project="p",
    spec=VmSpec(cpus=1, memory_mib=64),
    created_at=1.0,
    move=Move(to="b", number=3),
    snapshots=("old",),
)
HANDLE = VmHandle(
    id="v", node="a", state=MachineState.RUNNING, generation=1, moved=2, attempt=6, machine="m", seen_at=1.0
)
COMMAND = first_command(VM, HANDLE, fence=1, reasons=())
DEPARTING = Departure(to="b", number=7, wish=3)
LEAVING = replace(COMMAND, departing=DEPARTING)
B = NodeRecord(
    node="b",
    lifecycle=Lifecycle.ON_DUTY,
    capacity=Capacity(cpus=1, memory_mib=1),
    driver="simulated",
    place="there",
    moves=True,
    registered_at=1.0,
)
EXPECTED = Arrival(source="a", number=7, place="there", command=COMMAND)
OPEN = Way(arrival=EXPECTED, target=B, target_alive=True)


def decided(vm: VirtualMachine = VM, command: Any = LEAVING, way: Way = OPEN, **handle: Any) -> Any:
    case = NodeCase.ALIVE if way.source_alive else NodeCase.SILENT
    return decide(vm, replace(HANDLE, **handle), command, "a", case, way=way)


def test_a_move_that_is_asked_for_begins_once_and_is_over_once() -> None:
    assert decided(command=COMMAND).act is Act.MOVE
    assert decided().act is Act.NOTHING
    assert decided(command=COMMAND, moved=3).act is Act.NOTHING
    assert decided(command=COMMAND, way=replace(OPEN, source_alive=False)).act is Act.NOTHING


def test_a_move_waits_for_the_first_word_of_the_node() -> None:
    """By the handle with which it was placed its agent tells a leftover from the machine."""
    assert decided(command=COMMAND, state=MachineState.PLACED).act is Act.NOTHING


def test_every_attempt_has_a_number_above_all_before() -> None:
    assert handover_command(COMMAND, HANDLE, "b", wish=3, stop=True).departing == replace(DEPARTING, stop=True)


@pytest.mark.parametrize(
    ("way", "handle", "vm", "says"),
    [
        (OPEN, {"attempt": 7, "unmoved": "it broke"}, {}, "it broke"),
        (replace(OPEN, source_alive=False), {}, {}, "node a is unreachable"),
        (OPEN, {}, {"move": Move(to="c", number=4)}, "another move was requested"),
        (replace(OPEN, arrival=None), {}, {}, "does not expect it"),
        (replace(OPEN, arrival=replace(EXPECTED, number=6)), {}, {}, "does not expect it"),
        (replace(OPEN, arrival=replace(EXPECTED, refused="it is full")), {}, {}, "move to b: it is full"),
        (replace(OPEN, target=None), {}, {}, "was removed"),
        (replace(OPEN, target_alive=False), {}, {}, "that node is unreachable"),
        (replace(OPEN, target=replace(B, place="elsewhere")), {}, {}, "another storage location"),
        (replace(OPEN, target=replace(B, lifecycle=Lifecycle.DRAINING)), {}, {}, "DRAINING"),
    ],
)
def test_what_cannot_arrive_stays_and_says_why(way: Way, handle: dict[str, Any], vm: dict[str, Any], says: str) -> None:
    step = decided(replace(VM, **vm), way=way, **handle)
    assert step.act is Act.STAY
    assert says in step.why
    kept = handle_after_end(replace(HANDLE, **handle), DEPARTING, step.why, at=2.0)
    assert (kept.attempt, says in kept.unmoved) == (7, True)
    assert kept.moved == 3 or handle


def test_a_node_that_is_restarted_still_takes_what_comes() -> None:
    assert end_reason(VM, HANDLE, DEPARTING, replace(OPEN, target=replace(B, lifecycle=Lifecycle.JOINING))) is None


def test_a_machine_that_is_deleted_departs_no_more() -> None:
    step = decided(replace(VM, deleting=True))
    assert step.act is Act.INSTRUCT
    assert (step.command.deleting, step.command.departing) == (True, None)


def test_other_wishes_reach_the_node_that_has_it() -> None:
    step = decided(replace(VM, power=Power.OFF))
    assert step.act is Act.INSTRUCT
    assert (step.command.power, step.command.departing) == (Power.OFF, DEPARTING)


def test_snapshots_stay_behind_and_what_it_is_there_it_is_from_the_beginning() -> None:
    seen = replace(HANDLE, snapshots={"old": Snapshot(state=SnapshotState.READY, taken_at=1.0)})
    first = first_command(VM, seen, fence=2, reasons=())
    told = arrival(first, replace(LEAVING, fenced=True, fenced_since=5), seen, DEPARTING, source="a", place="there")
    assert told.command.lost == ("old",)
    assert (told.command.departing, told.command.fenced_since) == (None, 0)
    assert (told.source, told.number, told.place) == ("a", 7, "there")


@pytest.mark.parametrize(
    ("source", "target", "vm"),
    [
        (B, None, VM),
        (replace(B, moves=False), B, VM),
        (B, replace(B, moves=False), VM),
        (replace(B, driver="qemu"), B, VM),
        (B, B, replace(VM, node_labels={"node": "a"})),
    ],
)
def test_a_node_that_cannot_take_it_is_said_to(source: NodeRecord, target: NodeRecord | None, vm: Any) -> None:
    assert unfit(vm, source, "b", target) is not None
    assert unfit(replace(VM, node_labels={"node": "B"}), B, "b", B) is None


# The leader, with nodes that are scripted


def test_a_clone_is_made_where_its_origin_is_and_waits_with_the_reason_when_that_is_gone() -> None:
    async def story(world: World) -> None:
        await world.leader()
        for name in ("n1", "n2", "n3"):
            await world.node(name)
        await world.create("o", node_labels={"node": "n2"}, snapshots=("s",))
        await world.until_state("o", RUNNING)
        for number in range(3):
            await world.create(f"c{number}", spec=clone_of("o"))
            await world.until_state(f"c{number}", RUNNING)
            handle = await world.handle(f"c{number}")
            assert handle is not None
            assert handle.node == "n2"
        command = await world.command("n2", "c0")
        assert command is not None
        assert "its origin is on node n2" in [reason.why for reason in command.reasons]
        await world.create("lost", spec=clone_of("nobody"))
        await world.until_state("lost", MachineState.PENDING)
        handle = await world.handle("lost")
        assert handle is not None
        assert "its origin, machine nobody, was deleted; delete this machine" in handle.detail

    play(story)


def clone_of(vm: str) -> VmSpec:
    return VmSpec(cpus=1, memory_mib=64, origin=Origin(vm=vm, snapshot="s"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"capacity": Capacity(cpus=0, memory_mib=65536)}, "no room: 1 of 1 cpus missing"),
        ({"refuses": "its disk is almost full"}, "taking no more machines: its disk is almost full"),
        ({"images": ()}, "without any image"),
        ({"moves": False}, "cannot be migrated to it"),
    ],
)
def test_a_move_to_a_node_that_will_not_do_is_over_at_once_and_says_why(changes: dict[str, Any], says: str) -> None:
    async def story(world: World) -> None:
        await world.leader()
        await world.node("n1", moves=True)
        await world.create("a")
        await world.until_state("a", RUNNING)
        await world.node("n2", **{"moves": True, **changes})
        await asyncio.sleep(1.0)
        await world.change("a", move=Move(to="n2", number=1))

        async def over() -> bool:
            handle = await world.handle("a")
            return handle is not None and handle.moved == 1

        await world.until(over)
        handle = await world.handle("a")
        assert handle is not None
        assert says in handle.unmoved
        assert (await world.keys(ARRIVAL.prefix())) == []

    play(story)


async def drained(world: World, name: str) -> VmCommand:
    """The command of a machine on a node that has been drained for a minute."""
    await world.member(name, lifecycle=Lifecycle.DRAINING, drain=DrainMode.MOVE)
    await asyncio.sleep(60.0)
    command = await world.command(name, "a")
    assert command is not None
    return command


def test_a_drain_destroys_nothing_that_it_knows_too_little_of() -> None:
    async def story(world: World) -> None:
        await world.leader()
        await world.node("n1", moves=True)
        await world.create("a")
        await world.until_state("a", RUNNING)
        await world.node("n2", moves=True)
        handle = await world.handle("a")
        assert handle is not None
        assert not handle.machine, "the nodes of this world do not say which machine it is"
        assert not (await drained(world, "n1")).deleting

    play(story)


def test_a_drain_says_why_a_machine_that_could_not_be_made_stays() -> None:
    async def story(world: World) -> None:
        await world.leader()
        n1 = await world.node("n1", moves=True)
        n1.stuck = True
        await world.create("a")
        await world.until_state("a", MachineState.PLACED)
        entry = await HANDLE_KEY.get(world.raw, **ids("a"))
        assert entry is not None
        failed = replace(entry.value, state=MachineState.FAILED, detail="somebody else's stands there")
        await HANDLE_KEY.replace(world.raw, entry, failed)
        await world.node("n2", moves=True)
        command = await drained(world, "n1")
        assert not command.deleting
        assert "somebody else's stands there" in command.reasons[-1].why

    play(story)


def test_a_drain_takes_back_what_was_placed_and_not_begun() -> None:
    async def story(world: World) -> None:
        await world.leader()
        n1 = await world.node("n1", moves=True)
        n1.stuck = True
        await world.create("a")
        await world.until_state("a", MachineState.PLACED)
        await world.node("n2", moves=True)
        assert (await drained(world, "n1")).deleting
        n1.stuck = False

        async def elsewhere() -> bool:
            handle = await world.handle("a")
            return handle is not None and (handle.node, handle.state) == ("n2", RUNNING)

        await world.until(elsewhere)

    play(story)


def test_room_stays_kept_for_a_departure_without_an_answer_while_the_mirrors_are_late() -> None:
    async def story(world: World) -> None:
        leader = await world.leader()
        n1 = await world.node("n1", moves=True)
        await world.create("a")
        await world.until_state("a", RUNNING)
        n1.stuck_on = {"a"}  # it never hands over
        await world.node("n2", moves=True, capacity=Capacity(cpus=1, memory_mib=65536, disk_gib=10))
        await asyncio.sleep(1.0)
        leader.store.faults.slowest = 1000.0
        leader.store.script("txn", "lost", prefix=ARRIVAL.prefix(node="n2"))
        leader.store.script("event", "slow", prefix=ARRIVAL.prefix(node="n2"))
        await world.change("a", move=Move(to="n2", number=1))
        await asyncio.sleep(5.0)
        assert await world.keys(ARRIVAL.prefix(node="n2"))
        await world.create("b", node_labels={"node": "n2"})
        await asyncio.sleep(5.0)
        assert not leader.view.arrivals_of("a"), "the mirror is late"
        assert await world.state("b") is MachineState.PENDING

    play(story)


def test_room_is_kept_where_a_machine_will_arrive_and_given_back_when_it_does_not() -> None:
    async def story(world: World) -> None:
        await world.leader()
        n1 = await world.node("n1", moves=True)
        await world.create("a")
        await world.until_state("a", RUNNING)
        n1.stuck_on = {"a"}  # it never hands over
        n2 = await world.node("n2", moves=True, capacity=Capacity(cpus=1, memory_mib=65536, disk_gib=10))
        await asyncio.sleep(1.0)
        await world.change("a", move=Move(to="n2", number=1))
        await world.until(lambda: _expected(world))
        await world.create("b", node_labels={"node": "n2"})
        await world.until_state("b", MachineState.PENDING)
        await world.change("a", move=Move(to="n1", number=2))
        await world.until_state("b", RUNNING)
        assert (await world.keys(ARRIVAL.prefix())) == []
        handle = await world.handle("a")
        assert handle is not None
        assert (handle.node, handle.moved, handle.attempt) == ("n1", 2, 1)
        assert "b" in n2.machines

    async def _expected(world: World) -> bool:
        return bool(await world.keys(ARRIVAL.prefix()))

    play(story)
