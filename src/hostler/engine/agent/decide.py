"""Pure functions: the next step for one machine, and the handle that reports its state."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.model.node import Departure  # noqa: TC001 - msgspec reads annotations at run time
from hostler.model.vm import MachineState, Power, RestartPolicy, Snapshot, SnapshotState, VmHandle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hostler.model.node import VmCommand
    from hostler.ports.machines import Machine

_OFF = (MachineState.STOPPED, MachineState.FAILED)
_HANDED = (MachineState.ARRIVING, MachineState.DEPARTED)
_SHAPE = ("cpus", "memory_mib", "disk_gib", "image", "user_data", "network_config", "ssh_keys", "cpu_share")


class Action(enum.StrEnum):
    """An operation of the machine driver, or nothing."""

    NOTHING = "nothing"
    CREATE = "create"
    RESHAPE = "reshape"
    """`create` for an existing machine that is off: apply its new spec."""
    START = "start"
    STOP = "stop"
    SWITCH_OFF = "switch off"
    """`stop` without grace, because the current state will be discarded."""
    RESET = "reset"
    SNAPSHOT = "snapshot"
    DROP = "drop snapshot"
    RESTORE = "restore"
    DELETE = "delete"
    RETAIN = "retain"
    """Take the machine out of service and keep its disk."""
    MARK = "mark"
    """Set the label and tags of the current owner."""
    SEND = "move"
    """Migrate the machine to its target node."""


class Step(msgspec.Struct, frozen=True):
    """One idempotent step. `name` is that of a snapshot; `number` is that of a reset, restore or migration."""

    action: Action
    name: str = ""
    number: int = 0

    def __str__(self) -> str:
        return " ".join(filter(None, (self.action, self.name)))


class Going(msgspec.Struct, frozen=True, kw_only=True):
    """State of the migration of a machine to another node."""

    sends: bool = False
    """The machine should be migrated, and the migration was not given up."""
    cold: bool = False
    """The machine is stopped for a cold migration, because live migration is impossible."""
    stays: bool = True
    """No other node has the machine or will get it, so a DEPARTED machine may resume here."""


STAYS = Going()
NOTHING = Step(Action.NOTHING)
BOOTS = (Action.CREATE, Action.START, Action.RESTORE)
"""Expensive steps, of which only a few run at once on a node."""


def decide(
    command: VmCommand,
    seen: Machine | None,
    *,
    settled: int = 0,
    leftover: bool = False,
    going: Going = STAYS,
    put_off: Mapping[Step, bool] = {},
    ended: bool = False,
) -> Step:
    """Return the next step; NOTHING exactly when spec and status agree, or all remaining steps are postponed.

    `settled`: the number of the last restore that was done or given up. `leftover`: the observed machine does not
    belong to this command but to an earlier one. `going`: the state of its migration. `put_off`: failed steps that wait
    for a retry, and whether they were refused. `ended`: the machine stopped by itself and stays stopped (`has_ended`).
    """
    if ended:  # as if power off was requested: an arriving machine is not started, and a failed one stays as it is
        command = msgspec.structs.replace(command, power=Power.OFF)
    snapshot_waits = False
    for step in _wanted_steps(command, seen, settled, leftover, going):
        if ended and step.action is Action.STOP and seen is not None and seen.state is MachineState.FAILED:
            continue
        if snapshot_waits and step.action in (Action.SWITCH_OFF, Action.RESTORE):
            continue  # it would discard the state that the snapshot is to keep
        if step not in put_off:
            return step
        if step.action is Action.SNAPSHOT and not put_off[step]:
            snapshot_waits = True
    return NOTHING


def _wanted_steps(
    command: VmCommand, seen: Machine | None, settled: int, leftover: bool, going: Going
) -> Iterator[Step]:
    """Yield the remaining steps, most urgent first. A step is not followed by steps that depend on it."""
    if command.deleting or (leftover and seen is not None):
        if seen is not None:
            yield Step(Action.DELETE if command.deleting and not command.retain else Action.RETAIN)
    elif seen is None or seen.state is MachineState.CREATING:
        yield Step(Action.CREATE)
    elif seen.state in _HANDED:
        yield from _handover_steps(command, seen, going)
    elif seen.state is MachineState.STOPPING or (seen.state is MachineState.STARTING and command.power is Power.OFF):
        yield Step(Action.STOP)
    elif seen.state is MachineState.STARTING:
        yield Step(Action.START)
    else:
        yield from _whole(command, seen, settled, going)


def _whole(command: VmCommand, seen: Machine, settled: int, going: Going) -> Iterator[Step]:
    """Yield the remaining steps for a machine that is on or off, not in transition."""
    off = seen.state in _OFF
    if not is_marked(command, seen):
        yield Step(Action.MARK)
    for name in command.snapshots:
        if name not in seen.snapshots and name not in command.lost:
            yield Step(Action.SNAPSHOT, name)
    if command.restore is not None and restorable(command, seen, settled):
        restore = command.restore
        yield Step(Action.RESTORE, restore.snapshot, restore.number) if off else Step(Action.SWITCH_OFF)
        return
    for name in seen.snapshots:
        if name not in command.snapshots:
            yield Step(Action.DROP, name)
    if not (going.cold and going.sends):
        yield from _power(command, seen, on=command.power is Power.ON, off=off)
    elif not off:
        yield Step(Action.STOP)
    if going.sends and command.departing is not None:
        yield Step(Action.SEND, number=command.departing.number)


def _handover_steps(command: VmCommand, seen: Machine, going: Going) -> Iterator[Step]:
    """Yield the step that starts an arrived machine, or resumes a departed one if no other node has it."""
    departing = command.departing
    if seen.state is MachineState.DEPARTED and going.sends and departing is not None and departing.number == seen.moved:
        yield Step(Action.SEND, number=departing.number)
    elif seen.state is MachineState.ARRIVING or going.stays:
        yield Step(Action.STOP if command.power is Power.OFF else Action.START)


def _power(command: VmCommand, seen: Machine, *, on: bool, off: bool) -> Iterator[Step]:
    if seen.resets < command.resets and (on or off):  # if it is to be stopped, that comes first
        yield Step(Action.RESET, number=command.resets)
    if off and (seen.spec != command.spec or seen.fenced != command.fenced):
        yield Step(Action.RESHAPE)
        return
    if not command.power.is_known:  # a value of a later release: leave the machine as it is
        return
    if off and on:
        yield Step(Action.START)
    elif not on and seen.state is not MachineState.STOPPED:  # a failed machine that should be off becomes STOPPED
        yield Step(Action.STOP)


def has_ended(
    command: VmCommand, seen: Machine | None, before: VmHandle | None, *, node: str, ran: bool | None, was: bool = False
) -> bool:
    """Return whether a machine that should run stopped by itself and stays stopped under its restart policy.

    `before` is the current handle. `ran`: this process started the machine (True) or stopped it (False); None: neither,
    so the handle decides. `was`: it had ended when this process last checked. Power off and on, a reset, and a move to
    another node clear this state. A stop caused by the node (a power cut, fencing) does not count; a stopped machine
    with a `detail` indicates one.
    """
    if command.restart is RestartPolicy.ALWAYS or command.power is Power.OFF or command.deleting:
        return False
    if seen is None or before is None or before.node != node or command.resets > before.resets:
        return False
    before_ended = was or (ran is None and before.ended)
    if seen.state in _HANDED:
        return before_ended
    if seen.state not in _OFF or (seen.state is MachineState.FAILED and command.restart is RestartPolicy.ON_FAILURE):
        return False
    if before_ended:
        return True
    if seen.state is MachineState.STOPPED and seen.detail:
        return False
    told = before.state is MachineState.RUNNING and before.generation == command.generation
    return told if ran is None else ran


def is_marked(command: VmCommand, seen: Machine) -> bool:
    """Return whether the machine carries the owner and tags that the command specifies."""
    return (seen.label.org, seen.label.project, seen.tags) == (command.org, command.project, command.tags)


def restorable(command: VmCommand, seen: Machine, settled: int) -> bool:
    """Return whether a restore is due and possible. Its snapshot may have been lost with an earlier node."""
    restore = command.restore
    return (
        restore is not None
        and restore.number > max(seen.restored, settled)
        and restore.snapshot in seen.snapshots
        and restore.snapshot not in command.lost
    )


# Reporting


class StatusUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs of a handle other than the command and the machine."""

    node: str
    driver: str
    at: float
    settled: int = 0
    failures: int = 0
    detail: str = ""
    refused: bool = False
    """The last step was refused, so the machine does not match the request even if it runs."""
    broken: dict[str, str] = {}
    """Snapshots that could not be taken, with the reason."""
    given_up: Departure | None = None
    """The last migration that was given up."""
    unmoved: str = ""
    """Why it was given up."""
    ended: bool = False
    """The machine stopped by itself and stays stopped."""
    new_disk_at: float = 0.0
    """When the disk was found missing and a new one was started; 0: it was not missing."""


DOING = {
    Action.CREATE: MachineState.CREATING,
    Action.START: MachineState.STARTING,
    Action.STOP: MachineState.STOPPING,
    Action.SWITCH_OFF: MachineState.STOPPING,
    Action.DELETE: MachineState.DELETING,
    Action.RETAIN: MachineState.DELETING,
}


def tell(
    command: VmCommand, seen: Machine | None, before: VmHandle | None, telling: StatusUpdate, *, doing: Step = NOTHING
) -> VmHandle:
    """Return the handle for the current state or, with `doing`, during that step. `before`: the current handle."""
    state = DOING.get(doing.action) or _state(command, seen, telling)
    handle = VmHandle(
        id=command.vm,
        node=telling.node,
        driver=telling.driver,
        machine="" if seen is None else seen.id,
        state=state,
        generation=command.generation,
        cloud_status="" if seen is None else seen.cloud_status,
        address="" if seen is None else seen.address,
        detail=telling.detail or ("" if seen is None else seen.detail) or _left(command, telling),
        at_next_boot=() if seen is None or seen.state in _OFF else _at_next_boot(command, seen),
        resets=0 if seen is None else seen.resets,
        restored=telling.settled if seen is None else max(seen.restored, telling.settled),
        snapshots=_told_snapshots(command, seen, before, telling),
        readiness=None if seen is None else seen.readiness,
        access=None if seen is None else seen.access,
        paused=state is MachineState.RUNNING and seen is not None and seen.paused,
        **_told_moves(before, telling),
        **_told_disk(command, seen, before, telling),
        failures=telling.failures,
        ended=telling.ended,
        seen_at=telling.at,
    )
    return handle if before is None else msgspec.structs.replace(handle, unknown=before.unknown)


def _left(command: VmCommand, telling: StatusUpdate) -> str:
    """Return why the machine is off although it should run."""
    return f"it ended, and its restart policy ({command.restart.value}) leaves it off" if telling.ended else ""


def _told_moves(before: VmHandle | None, telling: StatusUpdate) -> dict[str, Any]:
    moved, attempt, unmoved = (0, 0, "") if before is None else (before.moved, before.attempt, before.unmoved)
    departure = telling.given_up
    if departure is not None and departure.number > attempt:
        moved, attempt, unmoved = max(moved, departure.wish), departure.number, telling.unmoved
    return {"moved": moved, "attempt": attempt, "unmoved": unmoved}


def _told_disk(
    command: VmCommand, seen: Machine | None, before: VmHandle | None, telling: StatusUpdate
) -> dict[str, Any]:
    """Return the disk fields. The values that the leader wrote at placement stay until the machine exists."""
    told: dict[str, Any] = {}
    if before is not None:
        told = {
            "reinstated": before.reinstated,
            "disk_since": telling.new_disk_at or before.disk_since,
            "lost_arrival": max(before.lost_arrival, (command.arrived or 0) if telling.new_disk_at else 0),
        }
        if seen is None or seen.state is MachineState.CREATING:
            told["taken_from"] = before.taken_from
    if seen is not None and command.reinstate:
        told |= {"reinstated": command.reinstate, "disk_since": 0.0}
    return told


def same(one: VmHandle | None, other: VmHandle) -> bool:
    """Return whether the handles are equal except for the time."""
    return one is not None and msgspec.structs.replace(one, seen_at=other.seen_at) == other


def _state(command: VmCommand, seen: Machine | None, telling: StatusUpdate) -> MachineState:
    if telling.refused:  # also if no machine of ours is seen: a foreign machine may be in its place
        return MachineState.FAILED
    if command.deleting and seen is None:
        return MachineState.GONE
    return MachineState.CREATING if seen is None else seen.state


def _at_next_boot(command: VmCommand, seen: Machine) -> tuple[str, ...]:
    """Return the spec fields that the running machine does not have yet. The leader relies on this: it may take a
    machine from an unreachable node only if `on_node_loss` is not among these fields."""
    fields = [name for name in _SHAPE if getattr(command.spec, name) != getattr(seen.spec, name)]
    if command.fenced != seen.fenced:
        fields.append("on_node_loss")
    return tuple(fields)


def _told_snapshots(
    command: VmCommand, seen: Machine | None, before: VmHandle | None, telling: StatusUpdate
) -> dict[str, Snapshot]:
    known = {} if before is None else before.snapshots
    there = () if seen is None else seen.snapshots
    told: dict[str, Snapshot] = {}
    for name in dict.fromkeys((*command.snapshots, *there)):
        old = known.get(name)
        if name in command.lost:
            detail = old.detail if old is not None and old.detail else "lost with an earlier node"
            told[name] = _unchanged_report(old, SnapshotState.FAILED, telling.at, detail)
        elif name in there:
            told[name] = _unchanged_report(old, SnapshotState.READY, telling.at)
        elif name in telling.broken:
            told[name] = _unchanged_report(old, SnapshotState.FAILED, telling.at, telling.broken[name])
    return told


def _unchanged_report(old: Snapshot | None, state: SnapshotState, at: float, detail: str = "") -> Snapshot:
    """Return the old report if it is still true. `taken_at` is when the snapshot reached its state."""
    if old is not None and old.state is state and (state is SnapshotState.READY or old.detail == detail):
        return old
    if state is SnapshotState.FAILED and old is not None:
        return Snapshot(state=state, taken_at=old.taken_at, detail=detail)
    return Snapshot(state=state, taken_at=at, detail=detail)
