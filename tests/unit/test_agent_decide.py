"""The agent's decisions: from everywhere they lead to where wish and world agree, and stop there."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

import msgspec
import pytest
from dose import seeds

from hostler.engine.agent.decide import NOTHING, Action, StatusUpdate, Step, decide, restorable, same, tell
from hostler.model.node import VmCommand
from hostler.model.vm import MachineState, Power, Restore, Snapshot, SnapshotState, VmHandle, VmSpec
from hostler.ports.machines import Label, Machine

if TYPE_CHECKING:
    from collections.abc import Iterator

replace = msgspec.structs.replace
SMALL, LARGE = VmSpec(cpus=1, memory_mib=64), VmSpec(cpus=2, memory_mib=128)
LABEL = Label("o", "p", "v", "c")
STATES = (
    MachineState.CREATING,
    MachineState.STOPPED,
    MachineState.STARTING,
    MachineState.RUNNING,
    MachineState.STOPPING,
    MachineState.FAILED,
)
ON = (MachineState.RUNNING, MachineState.STARTING, MachineState.STOPPING)


def command(**fields: object) -> VmCommand:
    return msgspec.structs.replace(VmCommand(org="o", project="p", vm="v", spec=SMALL), **fields)


def machine(state: MachineState = MachineState.RUNNING, **fields: object) -> Machine:
    return msgspec.structs.replace(Machine(label=LABEL, id="m", state=state, spec=SMALL), **fields)


def commands() -> Iterator[VmCommand]:
    for power, deleting, resets, snapshots, restore, lost, fenced in itertools.product(
        Power,
        (False, True),
        (0, 2),
        ((), ("s",), ("s", "t")),
        (None, Restore(snapshot="s", number=1), Restore(snapshot="gone", number=3)),
        ((), ("s",)),
        (False, True),
    ):
        yield command(
            power=power,
            deleting=deleting,
            resets=resets,
            snapshots=snapshots,
            restore=restore,
            lost=tuple(name for name in lost if name in snapshots),
            fenced=fenced,
        )


def worlds() -> Iterator[Machine | None]:
    yield None
    for state, spec, resets, restored, snapshots, fenced in itertools.product(
        STATES, (SMALL, LARGE), (0, 2), (0, 1), ((), ("s",), ("t", "u")), (False, True)
    ):
        yield machine(state, spec=spec, resets=resets, restored=restored, snapshots=snapshots, fenced=fenced)


def done(wish: VmCommand, seen: Machine | None, step: Step) -> Machine | None:
    """What the machine driver makes of a step."""
    if step.action is Action.DELETE:
        return None
    if step.action is Action.CREATE and seen is None:
        return machine(MachineState.STOPPED, spec=wish.spec, fenced=wish.fenced)
    assert seen is not None, f"{step} of nothing"
    match step.action:
        case Action.CREATE | Action.RESHAPE:
            assert seen.state not in ON, f"{step} of a machine that is on"
            return replace(seen, state=MachineState.STOPPED, spec=wish.spec, fenced=wish.fenced)
        case Action.START:
            return replace(seen, state=MachineState.RUNNING)
        case Action.STOP | Action.SWITCH_OFF:
            return replace(seen, state=MachineState.STOPPED)
        case Action.RESET:
            return replace(seen, resets=max(seen.resets, step.number))
        case Action.SNAPSHOT:
            return replace(seen, snapshots=(*seen.snapshots, step.name))
        case Action.DROP:
            return replace(seen, snapshots=tuple(name for name in seen.snapshots if name != step.name))
        case Action.RESTORE:
            assert step.name in seen.snapshots
            assert seen.state not in ON, "a restore under a running machine"
            return replace(seen, state=MachineState.STOPPED, restored=step.number)
    raise AssertionError(step)


def agrees(wish: VmCommand, seen: Machine | None, settled: int) -> bool:
    """In other words than decide's."""
    if wish.deleting:
        return seen is None
    if seen is None or seen.resets < wish.resets or restorable(wish, seen, settled):
        return False
    wanted = set(wish.snapshots) - set(wish.lost)
    if not wanted <= set(seen.snapshots) or not set(seen.snapshots) <= set(wish.snapshots):
        return False
    if wish.power is Power.ON:
        return seen.state is MachineState.RUNNING
    shaped = (seen.spec, seen.fenced) == (wish.spec, wish.fenced)
    return seen.state is MachineState.STOPPED and shaped


@pytest.mark.slow
def test_from_everywhere_a_few_steps_lead_to_where_wish_and_world_agree() -> None:
    all_worlds = list(worlds())
    for wish in commands():
        for start in all_worlds:
            seen, steps = start, []
            while (step := decide(wish, seen)) is not NOTHING:
                assert not agrees(wish, seen, 0), f"{step} though {wish} and {seen} agree"
                steps.append(step)
                assert len(steps) <= 12, f"{wish}\n{start}\n{steps}"
                seen = done(wish, seen, step)
            assert agrees(wish, seen, 0), f"nothing to do though {wish} and {seen} differ (from {start}, by {steps})"
            taken = [step.name for step in steps if step.action is Action.SNAPSHOT]
            assert not set(taken) & set(wish.lost)
            assert len(set(steps)) >= len(steps) - 1, f"{steps} go in circles"


@pytest.mark.parametrize("seed", seeds(test=50, pool=500, full=20_000))
def test_a_wish_that_changes_on_the_way_leads_there_too(seed: int) -> None:
    rng = random.Random(seed)
    wishes, all_worlds = list(commands()), list(worlds())
    seen = rng.choice(all_worlds)
    for _ in range(20):
        wish = rng.choice(wishes)
        for _ in range(rng.randrange(6)):
            if (step := decide(wish, seen)) is NOTHING:
                break
            seen = done(wish, seen, step)
    for _ in range(15):
        if (step := decide(wish, seen)) is NOTHING:
            break
        seen = done(wish, seen, step)
    assert agrees(wish, seen, 0)


def test_steps_that_are_put_off_end_in_nothing() -> None:
    for wish in itertools.islice(commands(), 0, None, 3):
        for seen in itertools.islice(worlds(), 0, None, 5):
            put_off: dict[Step, bool] = {}
            while (step := decide(wish, seen, put_off=put_off)) is not NOTHING:
                assert step not in put_off
                assert len(put_off) < 10
                put_off[step] = bool(len(put_off) % 2)


def test_a_machine_made_anew_counts_resets_as_done_before_it_starts() -> None:
    wish = command(resets=5)
    seen, steps = None, []
    while (step := decide(wish, seen)) is not NOTHING:
        steps.append(step.action)
        seen = done(wish, seen, step)
    assert steps == [Action.CREATE, Action.RESET, Action.START]


def test_a_restore_stops_the_machine_first_and_starts_it_if_it_shall_run() -> None:
    for power, last in ((Power.ON, [Action.START]), (Power.OFF, [])):
        wish = command(power=power, snapshots=("s",), restore=Restore(snapshot="s", number=1))
        seen: Machine | None = machine(snapshots=("s",))
        steps = []
        while (step := decide(wish, seen)) is not NOTHING:
            steps.append(step.action)
            seen = done(wish, seen, step)
        assert steps == [Action.SWITCH_OFF, Action.RESTORE, *last]


def test_a_restore_waits_for_a_snapshot_that_cannot_be_taken_now_but_not_for_one_that_never_can() -> None:
    wish = command(snapshots=("s", "t"), restore=Restore(snapshot="s", number=1))
    seen = machine(snapshots=("s",))
    snapshot = Step(Action.SNAPSHOT, "t")
    assert decide(wish, seen) == snapshot
    assert decide(wish, seen, put_off={snapshot: False}) is NOTHING
    assert decide(wish, seen, put_off={snapshot: True}) == Step(Action.SWITCH_OFF)


def test_a_snapshot_that_cannot_be_taken_keeps_no_machine_from_being_stopped() -> None:
    wish = command(snapshots=("s",), power=Power.OFF)
    assert decide(wish, machine(), put_off={Step(Action.SNAPSHOT, "s"): True}) == Step(Action.STOP)


def test_a_machine_off_for_a_restore_is_not_started_while_the_restore_is_put_off() -> None:
    wish = command(snapshots=("s",), restore=Restore(snapshot="s", number=4))
    seen = machine(MachineState.STOPPED, snapshots=("s",))
    assert decide(wish, seen, put_off={Step(Action.RESTORE, "s", 4): False}) is NOTHING
    assert decide(wish, seen, settled=4) == Step(Action.START)


def test_a_leftover_is_retained_before_anything_is_made() -> None:
    assert decide(command(), machine(), leftover=True) == Step(Action.RETAIN)
    assert decide(command(deleting=True), machine(), leftover=True) == Step(Action.DELETE), "its owner deletes it"
    assert decide(command(), None, leftover=True) == Step(Action.CREATE)


def test_a_running_machine_keeps_its_shape_until_it_is_off() -> None:
    wish = command(spec=LARGE, fenced=True)
    assert decide(wish, machine()) is NOTHING
    assert decide(wish, machine(MachineState.STOPPED)) == Step(Action.RESHAPE)


# What is told


def told(wish: VmCommand, seen: Machine | None, before: VmHandle | None = None, **fields: object) -> VmHandle:
    doing = fields.pop("doing", NOTHING)
    return tell(wish, seen, before, replace(StatusUpdate(node="n", driver="d", at=7.0), **fields), doing=doing)  # type: ignore[arg-type]


def test_the_handle_says_what_is_seen() -> None:
    seen = machine(address="10.0.0.1", resets=2, restored=1, snapshots=("s",))
    handle = told(command(generation=4, snapshots=("s",)), seen)
    assert handle == VmHandle(
        id="v",
        node="n",
        driver="d",
        machine="m",
        state=MachineState.RUNNING,
        generation=4,
        address="10.0.0.1",
        resets=2,
        restored=1,
        snapshots={"s": Snapshot(state=SnapshotState.READY, taken_at=7.0)},
        seen_at=7.0,
    )
    assert same(handle, replace(handle, seen_at=9.0))
    assert not same(handle, replace(handle, failures=1))


def test_gone_is_told_only_of_what_was_to_be_deleted_and_is_not_there() -> None:
    assert told(command(deleting=True), None).state is MachineState.GONE
    assert told(command(deleting=True), machine()).state is MachineState.RUNNING
    assert told(command(), None).state is MachineState.CREATING
    assert told(command(deleting=True), machine(), doing=Step(Action.DELETE)).state is MachineState.DELETING


def test_what_waits_for_the_next_boot_is_named_while_the_machine_is_on() -> None:
    wish = command(spec=replace(SMALL, cpus=4, image="new"), fenced=True)
    for state in ON:
        assert told(wish, machine(state)).at_next_boot == ("cpus", "image", "on_node_loss")
    assert told(wish, machine(MachineState.STOPPED)).at_next_boot == ()


def test_a_refused_step_is_told_as_failed_and_a_refused_snapshot_as_a_failed_snapshot() -> None:
    handle = told(command(), machine(MachineState.STOPPED), refused=True, detail="no such image", failures=3)
    assert (handle.state, handle.detail, handle.failures) == (MachineState.FAILED, "no such image", 3)
    handle = told(command(snapshots=("s",)), machine(), broken={"s": "disk full"})
    assert handle.state is MachineState.RUNNING
    assert handle.snapshots == {"s": Snapshot(state=SnapshotState.FAILED, taken_at=7.0, detail="disk full")}


def test_a_lost_snapshot_stays_lost_with_the_words_of_whoever_lost_it() -> None:
    lost = Snapshot(state=SnapshotState.FAILED, taken_at=1.0, detail="lost with node a")
    before = replace(told(command(), None), snapshots={"s": lost})
    wish = command(snapshots=("s",), lost=("s",))
    assert told(wish, machine(), before).snapshots == {"s": lost}
    assert told(wish, machine()).snapshots["s"].state is SnapshotState.FAILED


def test_a_snapshot_keeps_the_instant_at_which_it_was_taken() -> None:
    wish, seen = command(snapshots=("s",)), machine(snapshots=("s",))
    first = told(wish, seen)
    assert told(wish, seen, first, at=99.0).snapshots["s"].taken_at == 7.0


def test_fields_that_a_later_release_wrote_are_kept() -> None:
    before = VmHandle.decode(told(command(), machine()).encode()[:-1] + b',"later":1}')
    assert b'"later":1' in told(command(), machine(), before).encode()
