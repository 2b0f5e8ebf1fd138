"""Migration of machines from one node to another. Pure; `transactions` has the writes.

The leader begins a migration and may end it. In between it belongs to the agent that has the machine, which hands the
machine over in one transaction of its own. So the leader never has to know its progress:

- `departing` of the command and the arrival at the other node are written together, and deleted together;
- the handle contains the number of a migration that is over (`attempt`), whether the leader or the agent ended it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.model.name import fold
from hostler.model.node import Arrival, Departure, Lifecycle
from hostler.model.trace import Reason

if TYPE_CHECKING:
    from hostler.model.node import NodeRecord, VmCommand
    from hostler.model.vm import VirtualMachine, VmHandle

_TAKING = (Lifecycle.JOINING, Lifecycle.ON_DUTY)
"""A node is JOINING for a moment after a restart of its agent."""


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """A migration path: the state of its target, and whether its source is alive."""

    arrival: Arrival | None = None
    target: NodeRecord | None = None
    target_alive: bool = False
    source_alive: bool = True


def is_move_requested(vm: VirtualMachine, handle: VmHandle) -> bool:
    """Return whether a move is requested that is neither done nor given up."""
    return vm.move is not None and vm.move.number > handle.moved


def end_reason(vm: VirtualMachine, handle: VmHandle, departing: Departure, way: Way) -> str | None:
    """Return why a migration ends without a handover; None: it continues."""
    to, arrival, target = departing.to, way.arrival, way.target
    why = None
    if handle.attempt >= departing.number:
        why = handle.unmoved or f"move to {to}: given up"
    elif not way.source_alive:
        why = f"move to {to}: node {handle.node} is unreachable"
    elif vm.move is not None and vm.move.number > max(handle.moved, departing.wish):
        why = f"move to {to}: another move was requested"
    elif arrival is None or arrival.number != departing.number:
        why = f"move to {to}: that node does not expect it; request it again"
    elif arrival.refused:
        why = f"move to {to}: {arrival.refused}"
    elif target is None:
        why = f"move to {to}: that node was removed"
    elif not way.target_alive:
        why = f"move to {to}: that node is unreachable"
    elif target.place != arrival.place:
        why = f"move to {to}: that node has another storage location now; request it again"
    elif target.lifecycle not in _TAKING:
        why = f"move to {to}: that node is {target.lifecycle}"
    return why


def unfit(vm: VirtualMachine, source: NodeRecord | None, to: str, target: NodeRecord | None) -> str | None:
    """Return what prevents a move, other than capacity; None: nothing."""
    if target is None:
        return f"move to {to}: there is no such node"
    if source is None or not (source.moves and target.moves) or source.driver != target.driver:
        return f"move to {to}: machines of this node cannot be migrated to it"
    wants = vm.node_labels.get("node")
    if wants is not None and fold(wants) != to:
        return f"move to {to}: its own labels tie it to node {wants}"
    return None


def handover_command(command: VmCommand, handle: VmHandle, to: str, *, wish: int, stop: bool) -> VmCommand:
    """Return the command for the source node: hand the machine over."""
    departing = Departure(to=to, number=handle.attempt + 1, wish=wish, stop=stop)
    return msgspec.structs.replace(command, departing=departing)


def arrival(
    first: VmCommand, command: VmCommand, handle: VmHandle, departing: Departure, *, source: str, place: str
) -> Arrival:
    """Return the record for the target node; `first` is the command for a machine that is created there, at `place`.

    Snapshots are not migrated. The machine has its properties on the target from the first instant, like one that is
    created there.
    """
    behind = {*command.lost, *handle.snapshots}
    why = f"moved here from node {source}: {'as requested' if departing.wish else 'that node is drained'}"
    told = msgspec.structs.replace(
        first,
        lost=tuple(name for name in first.snapshots if name in behind),
        reasons=(Reason(subject=departing.to, why=why),),
    )
    return Arrival(source=source, number=departing.number, place=place, command=told)


def handle_after_end(handle: VmHandle, departing: Departure | None, why: str, *, at: float) -> VmHandle:
    """Return the handle of a machine whose migration is given up."""
    if departing is None or handle.attempt >= departing.number:
        return handle
    return msgspec.structs.replace(
        handle,
        attempt=departing.number,
        moved=max(handle.moved, departing.wish),
        unmoved=why,
        seen_at=at,
    )


def handle_after_request(vm: VirtualMachine, handle: VmHandle, why: str, *, at: float) -> VmHandle:
    """Return the handle of a machine whose requested move ended before it began; empty `why`: it is there already."""
    number = 0 if vm.move is None else vm.move.number
    return msgspec.structs.replace(handle, moved=max(handle.moved, number), unmoved=why, seen_at=at)
