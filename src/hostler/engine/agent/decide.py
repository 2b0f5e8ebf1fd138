"""The next single step for one machine, and the handle that tells how it is. Pure."""

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
    """A verb of the machine driver, or nothing."""

    NOTHING = "nothing"
    CREATE = "create"
    RESHAPE = "reshape"
    """`create` over a machine that is off: it takes its new shape."""
    START = "start"
    STOP = "stop"
    SWITCH_OFF = "switch off"
    """`stop` without grace: what it does now will be thrown away."""
    RESET = "reset"
    SNAPSHOT = "snapshot"
    DROP = "drop snapshot"
    RESTORE = "restore"
    DELETE = "delete"
    RETAIN = "retain"
    """Take it out of service, and keep its disk."""
    MARK = "mark"
    """Let it carry the label and tags of who has it now."""
    SEND = "move"
    """Hand it to the node that it departs to."""


class Step(msgspec.Struct, frozen=True):
    """One idempotent step; `name` is a snapshot's, `number` a reset's, restore's or departure's."""

    action: Action
    name: str = ""
    number: int = 0

    def __str__(self) -> str:
        return " ".join(filter(None, (self.action, self.name)))


class Going(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a machine's departure."""

    sends: bool = False
    """It shall be handed over, and that was not given up."""
    cold: bool = False
    """It is stopped for that: it cannot go as it runs."""
    stays: bool = True
    """It is certain that nobody else has it, or will: one that has departed may go on here."""


STAYS = Going()
NOTHING = Step(Action.NOTHING)
BOOTS = (Action.CREATE, Action.START, Action.RESTORE)
"""What costs a node so much that only a few are done at once."""


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
    """The next step; NOTHING exactly when wish and world agree, or all that is left is put off.

    `settled`: the number of the last restore that was done or given up. `leftover`: what is seen is not of this
    command, but was forgotten here by an earlier one. `going`: what is known of its departure. `put_off`: steps that
    failed and wait for their next try, and whether they were refused. `ended`: it did, and is left so (`has_ended`).
    """
    if ended:  # as if it were wished off: one that arrives is not started, and one that broke stays as it is
        command = msgspec.structs.replace(command, power=Power.OFF)
    snapshot_waits = False
    for step in _wanted(command, seen, settled, leftover, going):
        if ended and step.action is Action.STOP and seen is not None and seen.state is MachineState.FAILED:
            continue
        if snapshot_waits and step.action in (Action.SWITCH_OFF, Action.RESTORE):
            continue  # it would throw away what the snapshot is to keep
        if step not in put_off:
            return step
        if step.action is Action.SNAPSHOT and not put_off[step]:
            snapshot_waits = True
    return NOTHING


def _wanted(command: VmCommand, seen: Machine | None, settled: int, leftover: bool, going: Going) -> Iterator[Step]:
    """What is left to do, most urgent first. What cannot be done before another step does not follow it."""
    if command.deleting or (leftover and seen is not None):
        if seen is not None:
            yield Step(Action.DELETE if command.deleting and not command.retain else Action.RETAIN)
    elif seen is None or seen.state is MachineState.CREATING:
        yield Step(Action.CREATE)
    elif seen.state in _HANDED:
        yield from _handed(command, seen, going)
    elif seen.state is MachineState.STOPPING or (seen.state is MachineState.STARTING and command.power is Power.OFF):
        yield Step(Action.STOP)
    elif seen.state is MachineState.STARTING:
        yield Step(Action.START)
    else:
        yield from _whole(command, seen, settled, going)


def _whole(command: VmCommand, seen: Machine, settled: int, going: Going) -> Iterator[Step]:
    """The same for one that is on or off, and nothing between."""
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


def _handed(command: VmCommand, seen: Machine, going: Going) -> Iterator[Step]:
    """One that has come is let run; one that has departed is, if nobody else has it."""
    departing = command.departing
    if seen.state is MachineState.DEPARTED and going.sends and departing is not None and departing.number == seen.moved:
        yield Step(Action.SEND, number=departing.number)
    elif seen.state is MachineState.ARRIVING or going.stays:
        yield Step(Action.STOP if command.power is Power.OFF else Action.START)


def _power(command: VmCommand, seen: Machine, *, on: bool, off: bool) -> Iterator[Step]:
    if seen.resets < command.resets and (on or off):  # what is to be stopped is stopped first: off, it only counts
        yield Step(Action.RESET, number=command.resets)
    if off and (seen.spec != command.spec or seen.fenced != command.fenced):
        yield Step(Action.RESHAPE)
        return
    if not command.power.is_known:  # of a later release: it is left as it is
        return
    if off and on:
        yield Step(Action.START)
    elif not on and seen.state is not MachineState.STOPPED:  # what broke and shall be off is off, and not broken
        yield Step(Action.STOP)


def has_ended(
    command: VmCommand, seen: Machine | None, before: VmHandle | None, *, node: str, ran: bool | None, was: bool = False
) -> bool:
    """Whether a machine that shall run ended by itself, and is left so by its restart policy.

    `before` is the handle that stands. `ran`: this process let it run, or (False) saw to it that it does not; None:
    neither, and the handle tells. `was`: it had ended when this process looked last. Being switched off and on again,
    a reset, and another node end this. What its node did to it (a power cut, a fence) is not its own doing, and that
    is what a stopped machine with a `detail` tells.
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
    """Whether the machine carries what the command says: whose it is, and what people shall see of it."""
    return (seen.label.org, seen.label.project, seen.tags) == (command.org, command.project, command.tags)


def restorable(command: VmCommand, seen: Machine, settled: int) -> bool:
    """Whether a restore is to be done, and can be. Its snapshot may have gone with an earlier node."""
    restore = command.restore
    return (
        restore is not None
        and restore.number > max(seen.restored, settled)
        and restore.snapshot in seen.snapshots
        and restore.snapshot not in command.lost
    )


# What is told


class Telling(msgspec.Struct, frozen=True, kw_only=True):
    """What goes into a handle beside the command and the machine."""

    node: str
    driver: str
    at: float
    settled: int = 0
    failures: int = 0
    detail: str = ""
    refused: bool = False
    """The last step was refused: the machine is not what was asked for, whatever runs of it."""
    broken: dict[str, str] = {}
    """Snapshots that could not be taken, and why."""
    given_up: Departure | None = None
    """The last departure that was."""
    unmoved: str = ""
    """Why."""
    ended: bool = False
    """It did by itself, and is left so."""
    new_disk_at: float = 0.0
    """When its disk was found missing, and a new one was begun; 0: it was not."""


DOING = {
    Action.CREATE: MachineState.CREATING,
    Action.START: MachineState.STARTING,
    Action.STOP: MachineState.STOPPING,
    Action.SWITCH_OFF: MachineState.STOPPING,
    Action.DELETE: MachineState.DELETING,
    Action.RETAIN: MachineState.DELETING,
}


def tell(
    command: VmCommand, seen: Machine | None, before: VmHandle | None, telling: Telling, *, doing: Step = NOTHING
) -> VmHandle:
    """The handle, as it is now or, with `doing`, while that step is done. `before` is the handle that stands."""
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


def _left(command: VmCommand, telling: Telling) -> str:
    """Why it is off though it shall run."""
    return f"it ended, and its restart policy ({command.restart.value}) leaves it so" if telling.ended else ""


def _told_moves(before: VmHandle | None, telling: Telling) -> dict[str, Any]:
    moved, attempt, unmoved = (0, 0, "") if before is None else (before.moved, before.attempt, before.unmoved)
    departure = telling.given_up
    if departure is not None and departure.number > attempt:
        moved, attempt, unmoved = max(moved, departure.wish), departure.number, telling.unmoved
    return {"moved": moved, "attempt": attempt, "unmoved": unmoved}


def _told_disk(command: VmCommand, seen: Machine | None, before: VmHandle | None, telling: Telling) -> dict[str, Any]:
    """Which disk it has. What the leader wrote when it was placed stands until the machine exists."""
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
    """Whether they differ in nothing but the instant."""
    return one is not None and msgspec.structs.replace(one, seen_at=other.seen_at) == other


def _state(command: VmCommand, seen: Machine | None, telling: Telling) -> MachineState:
    if telling.refused:  # also if nothing of ours is seen: somebody else's machine may stand in its place
        return MachineState.FAILED
    if command.deleting and seen is None:
        return MachineState.GONE
    return MachineState.CREATING if seen is None else seen.state


def _at_next_boot(command: VmCommand, seen: Machine) -> tuple[str, ...]:
    """What the running machine does not have yet. The leader counts on it: a machine may only be taken from a silent
    node if the loss of the node does not stand here."""
    fields = [name for name in _SHAPE if getattr(command.spec, name) != getattr(seen.spec, name)]
    if command.fenced != seen.fenced:
        fields.append("on_node_loss")
    return tuple(fields)


def _told_snapshots(
    command: VmCommand, seen: Machine | None, before: VmHandle | None, telling: Telling
) -> dict[str, Snapshot]:
    known = {} if before is None else before.snapshots
    there = () if seen is None else seen.snapshots
    told: dict[str, Snapshot] = {}
    for name in dict.fromkeys((*command.snapshots, *there)):
        old = known.get(name)
        if name in command.lost:
            detail = old.detail if old is not None and old.detail else "lost with an earlier node"
            told[name] = _kept(old, SnapshotState.FAILED, telling.at, detail)
        elif name in there:
            told[name] = _kept(old, SnapshotState.READY, telling.at)
        elif name in telling.broken:
            told[name] = _kept(old, SnapshotState.FAILED, telling.at, telling.broken[name])
    return told


def _kept(old: Snapshot | None, state: SnapshotState, at: float, detail: str = "") -> Snapshot:
    """As it was told before, if that is what it still is; `taken_at` is when it came to be so."""
    if old is not None and old.state is state and (state is SnapshotState.READY or old.detail == detail):
        return old
    if state is SnapshotState.FAILED and old is not None:
        return Snapshot(state=state, taken_at=old.taken_at, detail=detail)
    return Snapshot(state=state, taken_at=at, detail=detail)
