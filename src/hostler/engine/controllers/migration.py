"""Machines that go from one node to another as they are. Pure; what is written: `steps`.

The leader begins a departure and may end it; between, it belongs to the agent that has the machine, which hands it over
in one transaction of its own. So the leader never has to know how far it is:

- `departing` of the command and the other node's arrival are written together, and taken away together;
- a departure that is over has its number in the handle (`attempt`), whoever ended it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.model.name import fold
from hostler.model.node import Arrival, Departure, Lifecycle
from hostler.model.reason import Reason

if TYPE_CHECKING:
    from hostler.model.node import NodeRecord, VmCommand
    from hostler.model.vm import VirtualMachine, VmHandle

_TAKING = (Lifecycle.JOINING, Lifecycle.ON_DUTY)
"""A node whose agent was restarted is joining for a moment."""


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """The way that a machine goes: what is known of its end, and whether its beginning lives."""

    arrival: Arrival | None = None
    target: NodeRecord | None = None
    target_alive: bool = False
    source_alive: bool = True


def wished(vm: VirtualMachine, handle: VmHandle) -> bool:
    """Whether a move is asked for that is neither done nor given up."""
    return vm.move is not None and vm.move.number > handle.moved


def blocked(vm: VirtualMachine, handle: VmHandle, departing: Departure, way: Way) -> str | None:
    """Why a departure ends without a handover; None: it goes on."""
    to, arrival, target = departing.to, way.arrival, way.target
    why = None
    if handle.attempt >= departing.number:
        why = handle.unmoved or f"move to {to}: it was given up"
    elif not way.source_alive:
        why = f"move to {to}: node {handle.node} gives no sign of life"
    elif vm.move is not None and vm.move.number > max(handle.moved, departing.wish):
        why = f"move to {to}: another one was asked for meanwhile"
    elif arrival is None or arrival.number != departing.number:
        why = f"move to {to}: that node was not told of it; ask again"
    elif arrival.refused:
        why = f"move to {to}: {arrival.refused}"
    elif target is None:
        why = f"move to {to}: that node was forgotten"
    elif not way.target_alive:
        why = f"move to {to}: that node gives no sign of life"
    elif target.place != arrival.place:
        why = f"move to {to}: that node has its machines at another place now; ask again"
    elif target.lifecycle not in _TAKING:
        why = f"move to {to}: that node is {target.lifecycle}"
    return why


def unfit(vm: VirtualMachine, source: NodeRecord | None, to: str, target: NodeRecord | None) -> str | None:
    """What is against a move but the room there is; None: nothing."""
    if target is None:
        return f"move to {to}: there is no such node"
    if source is None or not (source.moves and target.moves) or source.driver != target.driver:
        return f"move to {to}: machines of this node cannot be handed to it"
    wants = vm.node_labels.get("node")
    if wants is not None and fold(wants) != to:
        return f"move to {to}: its own labels tie it to node {wants}"
    return None


def begun(command: VmCommand, handle: VmHandle, to: str, *, wish: int, stop: bool) -> VmCommand:
    """The command of the node that has it: hand it over."""
    departing = Departure(to=to, number=handle.attempt + 1, wish=wish, stop=stop)
    return msgspec.structs.replace(command, departing=departing)


def arrival(
    first: VmCommand, command: VmCommand, handle: VmHandle, departing: Departure, *, source: str, place: str
) -> Arrival:
    """What the other node is told; `first` is what it would be told of a machine that is made there, at `place`.

    Snapshots stay behind. What the machine is there it is from its first instant, as one that is made there.
    """
    behind = {*command.lost, *handle.snapshots}
    why = f"moved here from node {source}: {'it was asked for' if departing.wish else 'that one is drained'}"
    told = msgspec.structs.replace(
        first,
        lost=tuple(name for name in first.snapshots if name in behind),
        reasons=(Reason(subject=departing.to, why=why),),
    )
    return Arrival(source=source, number=departing.number, place=place, command=told)


def stayed(handle: VmHandle, departing: Departure | None, why: str, *, at: float) -> VmHandle:
    """The handle of a machine whose departure is given up."""
    if departing is None or handle.attempt >= departing.number:
        return handle
    return msgspec.structs.replace(
        handle,
        attempt=departing.number,
        moved=max(handle.moved, departing.wish),
        unmoved=why,
        seen_at=at,
    )


def settled(vm: VirtualMachine, handle: VmHandle, why: str, *, at: float) -> VmHandle:
    """The handle of a machine whose wished-for move is over before it began; `why` is empty if it is there."""
    number = 0 if vm.move is None else vm.move.number
    return msgspec.structs.replace(handle, moved=max(handle.moved, number), unmoved=why, seen_at=at)
