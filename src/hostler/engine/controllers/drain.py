"""Emptying a node: whose turn it is. One machine at a time, and none that has nowhere to go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.engine.controllers.decision import NOTHING, Act, Duty, Step, stuck
from hostler.engine.placement import place, wanted_of
from hostler.keys.vm import HANDLE, VM
from hostler.model.node import DrainMode, Lifecycle
from hostler.model.vm import MachineState, Power

if TYPE_CHECKING:
    from hostler.engine.controllers.books import Books
    from hostler.engine.controllers.seen import Seen
    from hostler.engine.view import View
    from hostler.kit.clock import Clock
    from hostler.model.node import NodeRecord, VmCommand
    from hostler.model.vm import VirtualMachine, VmHandle

SETTLE = 60.0
"""Seconds that a machine which has left has to come up elsewhere before the next one goes anyway."""
_UP = (MachineState.RUNNING, MachineState.STOPPED, MachineState.FAILED)
VMS, HANDLES = VM.prefix(), HANDLE.prefix()


class Turn(msgspec.Struct, frozen=True):
    """What is next on a node. `again`: look again after so many seconds; 0.0: news will come."""

    name: str | None = None
    duty: Duty = Duty.SERVE
    stuck: tuple[tuple[str, str], ...] = ()
    """Machines that cannot go, and why."""
    again: float = 0.0


class _Left(msgspec.Struct, frozen=True):
    name: str
    until: float


def duty_of(record: NodeRecord) -> Duty:
    """What the node's lifecycle means for a machine whose turn it is not."""
    if record.lifecycle is Lifecycle.DECOMMISSIONED:
        return Duty.LEAVE
    if record.lifecycle is not Lifecycle.DRAINING:
        return Duty.SERVE
    return Duty.LEAVE if record.drain is DrainMode.MOVE else Duty.STAY_OFF


class Drains:
    """All nodes that are drained. A new leader may let one more go than this one would have."""

    def __init__(self, view: View, books: Books, *, clock: Clock) -> None:
        self._view, self._books, self._clock = view, books, clock
        self._left: dict[str, _Left] = {}
        self.stuck: set[str] = set()
        """Nodes with machines that found no other node."""

    def next(self, node: str, record: NodeRecord) -> Turn:
        """Whose turn it is."""
        here = sorted((f"{c.org}/{c.project}/{c.vm}", c) for c in (e.value for e in self._view.commands_of(node)))
        self.stuck.discard(node)
        if duty_of(record) is Duty.STAY_OFF:
            return self._next_to_stop(here)
        if any(command.deleting and self._stays(name) for name, command in here):
            return Turn()  # it is on its way; what its owner wished away may take as long as it likes
        left = self._left.get(node)
        if left is not None:
            wait = left.until - self._clock.now()
            if wait > 0 and not self._arrived(left.name, node):
                return Turn(again=min(1.0, wait))
            del self._left[node]
        return self._next_to_move(node, here)

    def began(self, node: str, name: str) -> None:
        """The machine was told to leave, or to stop."""
        self._left[node] = _Left(name, self._clock.now() + SETTLE)

    def arrives(self, vm: str) -> None:
        """The machine is about to be placed: the room that was kept for it is given back."""
        self._books.cluster.free(_kept(vm))

    def said(self, seen: Seen, why: str) -> Step:
        """Keep with the command why its machine is still here."""
        if seen.command is None or seen.command.value.deleting:
            return NOTHING
        reasons = stuck(seen.command.value.reasons, why)
        if reasons == seen.command.value.reasons:
            return NOTHING
        return Step(Act.INSTRUCT, msgspec.structs.replace(seen.command.value, reasons=reasons))

    # Inside

    def _next_to_stop(self, here: list[tuple[str, VmCommand]]) -> Turn:
        on: list[str] = []
        for name, command in here:
            vm, handle = self._vm(name), self._handle(name)
            if vm is None or vm.deleting or command.deleting:
                continue
            if command.power is Power.ON:
                on.append(name)
            elif vm.power is Power.ON and handle is not None and handle.state not in (*_UP[1:], MachineState.GONE):
                return Turn()  # it is being stopped
        return Turn(on[0], Duty.STOP) if on else Turn()

    def _next_to_move(self, node: str, here: list[tuple[str, VmCommand]]) -> Turn:
        stays: list[tuple[str, str]] = []
        for name, _ in here:
            vm = self._vm(name)
            if vm is None or vm.deleting:
                continue
            wanted = wanted_of(vm, exclude=frozenset((node,)))
            decision = place(wanted, self._books.cluster)
            if decision.node is not None:
                kept = msgspec.structs.replace(wanted, vm=_kept(vm.id))
                self._books.cluster.use(kept.vm, decision.node, kept)
                return Turn(name, Duty.MOVE, tuple(stays))
            stays.append((name, f"node {node} is drained, but {decision.summary}"))
        if stays:
            self.stuck.add(node)
        return Turn(stuck=tuple(stays))

    def _arrived(self, name: str, node: str) -> bool:
        vm, handle = self._vm(name), self._handle(name)
        if vm is None or vm.deleting or handle is None:
            return True
        return handle.state in _UP and handle.node != node

    def _stays(self, name: str) -> bool:
        """Whether its owner wants it: a command that takes it from the node is then a move."""
        vm = self._vm(name)
        return vm is not None and not vm.deleting

    def _vm(self, name: str) -> VirtualMachine | None:
        entry = self._view.vms.entries.get(VMS + name)
        return None if entry is None else entry.value

    def _handle(self, name: str) -> VmHandle | None:
        entry = self._view.handles.entries.get(HANDLES + name)
        return None if entry is None else entry.value


def _kept(vm: str) -> str:
    """Under this id room is kept for a machine that is on its way."""
    return f"{vm} on its way"
