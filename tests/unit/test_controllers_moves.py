"""The leader lets machines go to other nodes, and gives up what cannot arrive."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hostler.engine.controllers.decision import Act, NodeCase, decide, ordered
from hostler.engine.controllers.departure import Way, arrival, begun, blocked, stayed, unfit
from hostler.model.inventory import Capacity
from hostler.model.node import Arrival, Departure, Lifecycle, NodeRecord
from hostler.model.vm import MachineState, Move, Power, Snapshot, SnapshotState, VirtualMachine, VmHandle, VmSpec

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
COMMAND = ordered(VM, HANDLE, fence=1, reasons=())
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


def test_every_attempt_has_a_number_above_all_before() -> None:
    assert begun(COMMAND, HANDLE, "b", wish=3, stop=True).departing == replace(DEPARTING, stop=True)


@pytest.mark.parametrize(
    ("way", "handle", "vm", "says"),
    [
        (OPEN, {"attempt": 7, "unmoved": "it broke"}, {}, "it broke"),
        (replace(OPEN, source_alive=False), {}, {}, "node a gives no sign of life"),
        (OPEN, {}, {"move": Move(to="c", number=4)}, "another one was asked for"),
        (replace(OPEN, arrival=None), {}, {}, "was not told of it"),
        (replace(OPEN, arrival=replace(EXPECTED, number=6)), {}, {}, "was not told of it"),
        (replace(OPEN, arrival=replace(EXPECTED, refused="it is full")), {}, {}, "move to b: it is full"),
        (replace(OPEN, target=None), {}, {}, "was forgotten"),
        (replace(OPEN, target_alive=False), {}, {}, "that node gives no sign of life"),
        (replace(OPEN, target=replace(B, place="elsewhere")), {}, {}, "at another place"),
        (replace(OPEN, target=replace(B, lifecycle=Lifecycle.DRAINING)), {}, {}, "DRAINING"),
    ],
)
def test_what_cannot_arrive_stays_and_says_why(way: Way, handle: dict[str, Any], vm: dict[str, Any], says: str) -> None:
    step = decided(replace(VM, **vm), way=way, **handle)
    assert step.act is Act.STAY
    assert says in step.why
    kept = stayed(replace(HANDLE, **handle), DEPARTING, step.why, at=2.0)
    assert (kept.attempt, says in kept.unmoved) == (7, True)
    assert kept.moved == 3 or handle


def test_a_node_that_is_restarted_still_takes_what_comes() -> None:
    assert blocked(VM, HANDLE, DEPARTING, replace(OPEN, target=replace(B, lifecycle=Lifecycle.JOINING))) is None


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
    first = ordered(VM, seen, fence=2, reasons=())
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
