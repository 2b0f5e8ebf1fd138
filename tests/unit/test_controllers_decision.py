"""The leader's decision over every combination of wish, handle, command and node."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from controller_world import vm

from hostler.engine.controllers.decision import (
    Act,
    Duty,
    NodeCase,
    assigned_node,
    decide,
    harmless,
    unplaced_handle,
    updated_command,
)
from hostler.model.node import VmCommand
from hostler.model.trace import Reason
from hostler.model.vm import MachineState, OnNodeLoss, Power, Snapshot, SnapshotState, VmHandle, VmSpec

HERE, ELSEWHERE = "n1", "n2"
SPEC = VmSpec(cpus=1, memory_mib=1024)
WISHES = {"none": None, "on": vm("a"), "off": vm("a", power=Power.OFF), "deleting": vm("a", deleting=True)}


def command(**changes: Any) -> VmCommand:
    return VmCommand(**{"org": "o", "project": "p", "vm": "a", "name": "name-a", "spec": SPEC, **changes})


def handle(state: MachineState, node: str = HERE, **changes: Any) -> VmHandle:
    return VmHandle(**{"id": "a", "node": node, "state": state, "generation": 1, "seen_at": 0.0, **changes})


COMMANDS = {
    "none": None,
    "told": command(),
    "told, fenced": command(fenced=True),
    "told off": command(power=Power.OFF),
    "destroy": command(deleting=True),
    "destroy, fenced": command(deleting=True, fenced=True),
}
HANDLES: dict[str, VmHandle | None] = {
    "none": None,
    "pending": handle(MachineState.PENDING, node=""),
    **{f"{state} here": handle(state) for state in MachineState if state is not MachineState.PENDING},
    "running elsewhere": handle(MachineState.RUNNING, ELSEWHERE),
    "gone elsewhere": handle(MachineState.GONE, ELSEWHERE),
}
COMBINATIONS = [
    (wish, told, seen, case, duty)
    for wish, told, seen, case, duty in itertools.product(WISHES, COMMANDS, HANDLES, NodeCase, Duty)
]


def right(wish: str, told: str, seen: str, case: NodeCase, duty: Duty) -> Act:
    """The table, written by hand: the first line that fits."""
    fenced = "fenced" in told
    stopped_there = case is NodeCase.OFF or (case is NodeCase.LONG_SILENT and fenced)
    if wish == "none":
        return Act.NOTHING if told == seen == "none" else Act.SWEEP
    if told == "none":
        if wish == "deleting":
            return Act.FORGET
        if seen in ("none", "pending"):
            return Act.PLACE
        if "gone" in seen or case in (NodeCase.UNKNOWN, NodeCase.OFF):
            return Act.UNPLACE
        return Act.TELL_AGAIN if case is NodeCase.ALIVE else Act.NOTHING
    if stopped_there and wish == "deleting":
        return Act.FORGET_LOST
    if case is NodeCase.OFF:  # the wishes of the table do not ask to be recreated
        return Act.TAKE
    if not seen.endswith(" here"):
        return Act.ADOPT
    if "destroy" in told:
        if seen != "gone here":
            return Act.NOTHING
        return Act.FORGET if wish == "deleting" else Act.RELEASE
    if wish == "deleting" or duty is Duty.MOVE or fenced:  # the wishes of the table do not ask for a fence
        return Act.INSTRUCT
    on = told == "told"
    if duty is Duty.STOP or (duty is Duty.STAY_OFF and not on):
        return Act.INSTRUCT if on else Act.NOTHING
    return Act.NOTHING if on == (wish == "on") else Act.INSTRUCT


def test_every_combination_leads_to_the_step_of_the_table() -> None:
    assert len(COMBINATIONS) > 5000
    for wish, told, seen, case, duty in COMBINATIONS:
        step = decide(WISHES[wish], HANDLES[seen], COMMANDS[told], HERE, case, duty)
        assert step.act is right(wish, told, seen, case, duty), (wish, told, seen, case, duty)
        assert (step.command is not None) == (step.act is Act.INSTRUCT)


def test_no_step_takes_a_machine_from_a_node_that_may_run_it() -> None:
    for wish, told, seen, case, duty in COMBINATIONS:
        step = decide(WISHES[wish], HANDLES[seen], COMMANDS[told], HERE, case, duty)
        if told == "none" or wish == "none":
            continue
        leaves = step.act in (Act.RELEASE, Act.TAKE, Act.FORGET, Act.FORGET_LOST, Act.PLACE, Act.UNPLACE)
        certain = seen == "gone here" or case is NodeCase.OFF or (case is NodeCase.LONG_SILENT and "fenced" in told)
        assert not leaves or certain, (wish, told, seen, case, duty)


def test_a_command_to_destroy_never_takes_it_back() -> None:
    for wish, told, seen, case, duty in COMBINATIONS:
        before = COMMANDS[told]
        step = decide(WISHES[wish], HANDLES[seen], before, HERE, case, duty)
        assert before is None or not before.deleting or step.command is None


def test_a_step_that_was_done_is_not_done_again() -> None:
    for wish, told, seen, case, duty in COMBINATIONS:
        first = decide(WISHES[wish], HANDLES[seen], COMMANDS[told], HERE, case, duty)
        if first.command is not None:
            assert decide(WISHES[wish], HANDLES[seen], first.command, HERE, case, duty).command is None


def test_a_fence_counts_from_the_first_command_or_from_the_answer_to_the_one_that_asked() -> None:
    late = command(fenced=True, fenced_since=5, generation=7)
    long = NodeCase.LONG_SILENT
    assert harmless(command(fenced=True), None, long)
    assert not harmless(command(), handle(MachineState.STOPPED), long)
    assert not harmless(late, None, long)
    assert not harmless(late, handle(MachineState.RUNNING, generation=4), long)
    assert not harmless(late, handle(MachineState.RUNNING, generation=6, at_next_boot=("on_node_loss",)), long)
    assert harmless(late, handle(MachineState.RUNNING, generation=5), long)


@pytest.mark.parametrize("answered", [0, 1, 2, 3])
def test_a_fence_that_is_asked_for_later_is_never_confirmed_by_an_older_answer(answered: int) -> None:
    wish = vm("a", on_node_loss=OnNodeLoss.FENCE, generation=2)
    seen = handle(MachineState.RUNNING, generation=answered)
    new = updated_command(wish, command(), seen)
    assert new.fenced
    assert not harmless(new, seen, NodeCase.LONG_SILENT)
    assert harmless(new, handle(MachineState.RUNNING, generation=new.fenced_since), NodeCase.LONG_SILENT)


def test_a_fence_that_was_given_up_and_asked_for_again_counts_anew() -> None:
    seen = handle(MachineState.RUNNING, generation=1)
    first = command(fenced=True)
    without = updated_command(vm("a", generation=2), first, seen)
    assert not without.fenced
    again = updated_command(vm("a", generation=3, on_node_loss=OnNodeLoss.FENCE), without, seen)
    assert again.fenced_since == 3


def test_what_was_never_taken_is_not_lost() -> None:
    wish = vm("a", snapshots=("taken", "told", "new"))
    taken = Snapshot(state=SnapshotState.READY, taken_at=5.0)
    seen = handle(MachineState.RUNNING, snapshots={"taken": taken, "dropped": taken})
    told = command(snapshots=("taken", "told", "dropped"))
    after = unplaced_handle(wish, seen, told, node=HERE, why="node n1 was lost", at=9.0)
    assert set(after.snapshots) == {"taken", "told"}
    assert after.snapshots["taken"] == Snapshot(state=SnapshotState.FAILED, taken_at=5.0, detail="lost with node n1")
    assert (after.node, after.state) == ("", MachineState.PENDING)


def test_reasons_of_a_drain_go_when_the_node_is_on_duty_again() -> None:
    kept = Reason(subject="n1", why="score 80")
    before = command(reasons=(kept, Reason(subject="drain", why="no other node")))
    seen = handle(MachineState.RUNNING)
    assert updated_command(vm("a"), before, seen, Duty.LEAVE).reasons == before.reasons
    assert updated_command(vm("a"), before, seen, Duty.SERVE).reasons == (kept,)


def test_of_several_commands_the_handles_counts() -> None:
    assert assigned_node(handle(MachineState.RUNNING, "n2"), ["n1", "n2"]) == "n2"
    assert assigned_node(handle(MachineState.PENDING, ""), ["n2", "n1"]) == "n1"
    assert assigned_node(None, []) is None


def test_what_a_wish_says_is_in_the_command() -> None:
    wish = vm("a", generation=4, resets=2, snapshots=("s",), spec=msgspec.structs.replace(SPEC, cpus=3))
    new = updated_command(wish, command(lost=("s", "old")), handle(MachineState.RUNNING))
    assert (new.generation, new.resets, new.snapshots, new.spec.cpus, new.lost) == (4, 2, ("s",), 3, ("s",))
