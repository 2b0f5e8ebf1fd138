"""The leader's next step for one virtual machine. Pure.

The inputs are the spec, the handle, the command and the node that has the command. All rules that keep a machine on a
node or remove it are here:

- a command is only removed from a node that reported GONE, or on which the machine certainly does not run;
- a command with `deleting` stays so: the machine may be half destroyed;
- a machine counts as fenced if the first command on its node said so, or if its agent has answered the one that did.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.engine.controllers.migration import Way, end_reason, handle_after_end, is_move_requested
from hostler.model.lab import utc_time
from hostler.model.node import VmCommand
from hostler.model.trace import Reason
from hostler.model.vm import MachineState, Power, Snapshot, SnapshotState, VmHandle, has_disk

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostler.model.vm import Reinstatement, VirtualMachine


class NodeCase(enum.Enum):
    """State of the node that has the command, as known to the leader."""

    UNKNOWN = enum.auto()
    """It has no record."""
    ALIVE = enum.auto()
    SILENT = enum.auto()
    LONG_SILENT = enum.auto()
    """Unreachable for longer than its fencing time, as observed by this leader: fenced machines have stopped."""
    OFF = enum.auto()
    """Unreachable, and confirmed to be off."""


class Duty(enum.Enum):
    """Meaning of the node's lifecycle for this machine now."""

    SERVE = enum.auto()
    LEAVE = enum.auto()
    """The node is drained by moving; this machine waits for its turn, or for another node that accepts it."""
    MOVE = enum.auto()
    """The node is drained by moving, it is this machine's turn, and another node accepts it."""
    STAY_OFF = enum.auto()
    """The node is drained by stopping: machines that are off stay off."""
    STOP = enum.auto()
    """The node is drained by stopping, and it is this machine's turn to be stopped."""


class Act(enum.Enum):
    """The action of a step."""

    NOTHING = enum.auto()
    PLACE = enum.auto()
    """Find a node and write its command; or report why there is none."""
    INSTRUCT = enum.auto()
    """Replace the command with that of the step."""
    RELEASE = enum.auto()
    """The node reported GONE: delete the command, so that the machine is placed again."""
    TAKE = enum.auto()
    """The node is unreachable and the machine certainly does not run there: delete the command, as for RELEASE."""
    FORGET = enum.auto()
    """Delete VM record, name, handle and command."""
    FORGET_LOST = enum.auto()
    """As FORGET, on an unreachable node on which the machine certainly does not run."""
    SWEEP = enum.auto()
    """There is no VM record: delete handle and command; the node retains a machine without a command."""
    ADOPT = enum.auto()
    """A node has the command and the handle does not name it: update the handle."""
    TELL_AGAIN = enum.auto()
    """The handle names a live node that has no command: write it again, because the machine may be there."""
    MOVE = enum.auto()
    """Start the migration to the requested node; or report why it is not possible."""
    STAY = enum.auto()
    """Give the migration up."""
    UNPLACE = enum.auto()
    """The handle names a node that has no command, and no machine is there: place it again."""


class Step(msgspec.Struct, frozen=True):
    """One step, with the new command if it writes one."""

    act: Act
    command: VmCommand | None = None
    why: str = ""


NOTHING = Step(Act.NOTHING)
_LOSS = "on_node_loss"
DRAIN = "drain"
"""Subject of the reason why a machine is still on a drained node."""


def assigned_node(handle: VmHandle | None, nodes: Iterable[str]) -> str | None:
    """Return which of the nodes with a command counts: the handle's, else the first by name."""
    having = sorted(nodes)
    if handle is not None and handle.node in having:
        return handle.node
    return having[0] if having else None


def decide(  # noqa: PLR0917 - desired state, observed state and node
    vm: VirtualMachine | None,
    handle: VmHandle | None,
    command: VmCommand | None,
    node: str,
    case: NodeCase = NodeCase.ALIVE,
    duty: Duty = Duty.SERVE,
    way: Way = Way(),  # noqa: B008 - immutable
) -> Step:
    """Return the next single step; NOTHING exactly when there is nothing to do or something to wait for.

    `node` has `command`; without a command it is the handle's, or empty. `case` and `duty` describe the node, `way` the
    migration target.
    """
    if vm is None:
        return NOTHING if handle is None and command is None else Step(Act.SWEEP)
    if command is None:
        return _without_command(vm, handle, case)
    if harmless(command, handle, case):
        if vm.deleting:
            return Step(Act.FORGET_LOST)
        if case is NodeCase.OFF or vm.recreates:
            return Step(Act.TAKE)
        # It has stopped by itself, and returns with its disk when the node is back.
    if handle is None or handle.node != node:
        return Step(Act.ADOPT)
    if command.deleting:
        if handle.state is not MachineState.GONE:
            return NOTHING
        return Step(Act.FORGET if vm.deleting else Act.RELEASE)
    wanted = updated_command(vm, command, handle, duty)
    if wanted.departing is not None and (why := end_reason(vm, handle, wanted.departing, way)) is not None:
        return Step(Act.STAY, why=why)
    if wanted != command:
        return Step(Act.INSTRUCT, wanted)
    # A placed machine without a report keeps the handle that it was placed with: its agent needs it to detect
    # leftovers.
    known = case is NodeCase.ALIVE and handle.state is not MachineState.PLACED
    return Step(Act.MOVE) if known and command.departing is None and is_move_requested(vm, handle) else NOTHING


def harmless(command: VmCommand, handle: VmHandle | None, case: NodeCase) -> bool:
    """Return whether the machine certainly does not run on its unreachable node."""
    if case is not NodeCase.LONG_SILENT or not command.fenced:
        return case is NodeCase.OFF
    if command.fenced_since == 0:
        return True
    return (
        handle is not None
        and handle.generation >= command.fenced_since
        and _LOSS not in handle.at_next_boot  # it runs, and is not fenced until it is restarted
    )


def _without_command(vm: VirtualMachine, handle: VmHandle | None, case: NodeCase) -> Step:
    if vm.deleting:
        return Step(Act.FORGET)
    if handle is None or not handle.node:
        return Step(Act.PLACE)
    if case in (NodeCase.UNKNOWN, NodeCase.OFF) or handle.state is MachineState.GONE:
        return Step(Act.UNPLACE)
    return Step(Act.TELL_AGAIN) if case is NodeCase.ALIVE else NOTHING  # an unreachable node gets no new commands


# Records


def to_reinstate(vm: VirtualMachine, handle: VmHandle | None) -> Reinstatement | None:
    """Return the retained machine whose disk the owner requested; None: none, or done."""
    wanted = vm.reinstate
    done = wanted is not None and handle is not None and handle.reinstated == wanted.name
    return None if done else wanted


def first_command(
    vm: VirtualMachine,
    handle: VmHandle | None,
    *,
    fence: int,
    reasons: tuple[Reason, ...],
    reinstate: str | None = None,
) -> VmCommand:
    """Return the first command for a machine on a node.

    Snapshots that failed, or were lost with an earlier node, are marked as lost; they return with a reinstated disk.
    """
    seen = {} if handle is None or reinstate is not None else handle.snapshots
    gone = {name for name, snapshot in seen.items() if snapshot.state is SnapshotState.FAILED}
    return VmCommand(
        org=vm.org,
        project=vm.project,
        vm=vm.id,
        name=vm.name,
        tags=tags_of(vm),
        spec=vm.spec,
        power=vm.power,
        restart=vm.restart,
        instance=vm.instance,
        resets=vm.resets,
        snapshots=vm.snapshots,
        restore=vm.restore,
        lost=tuple(name for name in vm.snapshots if name in gone),
        fenced=vm.is_fenced,
        generation=vm.generation,
        fence=fence,
        arrived=0,
        reinstate=reinstate,
        reasons=reasons,
    )


def tags_of(vm: VirtualMachine) -> dict[str, str]:
    """Return the tags that the provider shows: the owner's labels, and the expiry."""
    return vm.labels if vm.expires_at is None else {**vm.labels, "expires": utc_time(vm.expires_at)}


def assigned_handle(
    vm: VirtualMachine, handle: VmHandle | None, *, node: str, driver: str, at: float, new_disk: bool = False
) -> VmHandle:
    """Return the handle of a machine whose node has a command and has not answered yet.

    `new_disk`: the machine had a disk, and gets a new one from its image.
    """
    journeys = _journeys(handle)
    if new_disk:
        journeys |= {"disk_since": at}
    return VmHandle(
        id=vm.id,
        node=node,
        driver=driver,
        state=MachineState.PLACED,
        generation=vm.generation,
        snapshots={} if handle is None else handle.snapshots,
        **journeys,
        seen_at=at,
    )


def updated_command(vm: VirtualMachine, command: VmCommand, handle: VmHandle, duty: Duty = Duty.SERVE) -> VmCommand:
    """Return the command for the current spec and the node's duty."""
    power = vm.power
    if duty is Duty.STOP or (duty is Duty.STAY_OFF and command.power is Power.OFF):
        power = Power.OFF
    fenced, since = vm.is_fenced, command.fenced_since
    if fenced and not command.fenced:
        # An existing answer to this generation was given when the machine was not fenced.
        since = max(vm.generation, handle.generation + 1)
    deleting = command.deleting or vm.deleting or duty is Duty.MOVE or _restored_elsewhere(vm, command, handle)
    # The disk is kept, unless the owner deleted the machine.
    given_up = vm.deleting and not vm.keep_disk
    retain = deleting and not given_up and (command.retain or not command.deleting)
    return msgspec.structs.replace(
        command,
        name=vm.name,
        tags=tags_of(vm),
        spec=vm.spec,
        power=power,
        restart=vm.restart,
        instance=vm.instance,
        deleting=deleting,
        retain=retain,
        departing=None if deleting else command.departing,
        resets=vm.resets,
        snapshots=vm.snapshots,
        restore=vm.restore,
        lost=tuple(name for name in command.lost if name in vm.snapshots),
        fenced=fenced,
        fenced_since=since if fenced else 0,
        generation=vm.generation,
        reasons=command.reasons if duty is Duty.LEAVE else stuck(command.reasons, ""),
    )


def _restored_elsewhere(vm: VirtualMachine, command: VmCommand, handle: VmHandle) -> bool:
    """Return whether the owner requested the disk of a retained machine after the command was written."""
    wanted = to_reinstate(vm, handle)
    return wanted is not None and command.generation != vm.generation and command.reinstate != wanted.name


def stuck(reasons: tuple[Reason, ...], why: str) -> tuple[Reason, ...]:
    """Return the reasons, with why the machine cannot leave the drained node; without it if `why` is empty."""
    kept = tuple(reason for reason in reasons if reason.subject != DRAIN)
    return (*kept, Reason(subject=DRAIN, why=why)) if why else kept


def unplaced_handle(
    vm: VirtualMachine,
    handle: VmHandle | None,
    command: VmCommand | None,
    *,
    node: str,
    why: str,
    at: float,
    lost: bool = False,
) -> VmHandle:
    """Return the handle of a machine that was taken from `node`, together with its snapshots.

    `lost`: the node is lost, and the disk may return with it.
    """
    taken_from = "" if handle is None else handle.taken_from
    new_disk = {}
    if lost and has_disk(handle):
        taken_from = node
    elif node and not lost:
        taken_from, new_disk = "", {"disk_since": at}
    if handle is not None and command is not None:
        handle = handle_after_end(handle, command.departing, why, at=at)
    seen = {} if handle is None else handle.snapshots
    names = dict.fromkeys((*seen, *(() if command is None else command.snapshots)))
    return VmHandle(
        id=vm.id,
        state=MachineState.PENDING,
        generation=vm.generation,
        detail=why,
        snapshots={
            name: _lost_snapshot(seen.get(name), node, at)
            for name in names
            if name in vm.snapshots  # deleted snapshots need no record
        },
        **(_journeys(handle) | {"taken_from": taken_from} | new_disk),
        seen_at=at,
    )


def _journeys(handle: VmHandle | None) -> dict[str, Any]:
    """Return the fields about migrations and disks to keep when a machine is placed again: numbers are never reused."""
    if handle is None:
        return {}
    return {
        "moved": handle.moved,
        "attempt": handle.attempt,
        "unmoved": handle.unmoved,
        "taken_from": handle.taken_from,
        "reinstated": handle.reinstated,
        "disk_since": handle.disk_since,
    }


def _lost_snapshot(seen: Snapshot | None, node: str, at: float) -> Snapshot:
    if seen is not None and seen.state is SnapshotState.FAILED:
        return seen
    return Snapshot(
        state=SnapshotState.FAILED, taken_at=at if seen is None else seen.taken_at, detail=f"lost with node {node}"
    )
