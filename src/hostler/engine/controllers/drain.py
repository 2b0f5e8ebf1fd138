"""Emptying a node: whose turn it is. One machine at a time, and none that has nowhere to go."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.controllers.decision import NOTHING, Act, Duty, Step, stuck
from hostler.engine.controllers.snapshot import named
from hostler.engine.placement import place, wanted_of
from hostler.keys.vm import HANDLE, VM
from hostler.model.node import DrainMode, Lifecycle
from hostler.model.vm import MachineState, Power, ready_snapshots

if TYPE_CHECKING:
    from hostler.engine.controllers.allocations import Books
    from hostler.engine.controllers.migration_steps import Moves
    from hostler.engine.controllers.snapshot import Seen
    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.node import NodeRecord, VmCommand
    from hostler.model.vm import VirtualMachine, VmHandle

SETTLE = 60.0
"""Seconds that a machine which has left has to come up elsewhere before the next one goes anyway."""
UNTOLD = 5.0
"""Seconds after which it is looked whether a node has said what it has."""
_UP = (MachineState.RUNNING, MachineState.STOPPED, MachineState.FAILED)
VMS, HANDLES = VM.prefix(), HANDLE.prefix()


class Turn(msgspec.Struct, frozen=True):
    """What is next on a node. `again`: look again after so many seconds; 0.0: news will come."""

    name: str | None = None
    duty: Duty = Duty.SERVE
    to: str = ""
    """The node that it is handed to, as it is; empty: it is destroyed, and made anew elsewhere."""
    stuck: tuple[tuple[str, str], ...] = ()
    """Machines that cannot go, and why."""
    again: float = 0.0


class _Left(msgspec.Struct, frozen=True):
    name: str
    until: float
    attempt: int
    """The number of its last departure before this one."""


def duty_of(record: NodeRecord) -> Duty:
    """What the node's lifecycle means for a machine whose turn it is not."""
    if record.lifecycle is Lifecycle.DECOMMISSIONED:
        return Duty.LEAVE
    if record.lifecycle is not Lifecycle.DRAINING or not record.drain.is_known:
        return Duty.SERVE
    return Duty.LEAVE if record.drain is DrainMode.MOVE else Duty.STAY_OFF


class Drains:
    """All nodes that are drained. A new leader may let one more go than this one would have."""

    def __init__(self, view: View, books: Books, moves: Moves, *, clock: Clock, stuck: set[str]) -> None:
        """`stuck`: it keeps there which nodes have machines that found no other one."""
        self._view, self._books, self._moves, self._clock = view, books, moves, clock
        self._left: dict[str, _Left] = {}
        self._later: dict[str, float] = {}  # machines that could not be handed over, and when to try again
        self._stuck = stuck

    def next(self, node: str, record: NodeRecord) -> Turn:
        """Whose turn it is."""
        here = sorted(((named(e.value), e) for e in self._view.commands_of(node)), key=itemgetter(0))
        self._stuck.discard(node)
        if duty_of(record) is Duty.STAY_OFF:
            return self._next_to_stop(here)
        if any((e.value.deleting or e.value.departing) and self._stays(name) for name, e in here):
            return Turn()  # it is on its way; what its owner wished away may take as long as it likes
        left = self._left.get(node)
        if left is not None:
            wait = left.until - self._clock.now()
            if wait > 0 and not self._arrived(left.name, node) and not self._came_back(left, node):
                return Turn(again=min(1.0, wait))
            del self._left[node]
        return self._next_to_move(node, record, here)

    def began(self, node: str, name: str) -> None:
        """The machine was told to leave, or to stop."""
        handle = self._handle(name)
        self._left[node] = _Left(name, self._clock.now() + SETTLE, 0 if handle is None else handle.attempt)

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

    def _next_to_stop(self, here: list[tuple[str, Entry[VmCommand]]]) -> Turn:
        on: list[str] = []
        for name, entry in here:
            vm, handle, command = self._vm(name), self._handle(name), entry.value
            if vm is None or vm.deleting or command.deleting:
                continue
            if command.power is Power.ON:
                on.append(name)
            elif vm.power is Power.ON and handle is not None and handle.state not in (*_UP[1:], MachineState.GONE):
                return Turn()  # it is being stopped
        return Turn(on[0], Duty.STOP) if on else Turn()

    def _next_to_move(self, node: str, record: NodeRecord, here: list[tuple[str, Entry[VmCommand]]]) -> Turn:
        stays: list[tuple[str, str]] = []
        again = 0.0
        for name, command in here:
            vm, handle = self._vm(name), self._handle(name)
            if vm is None or vm.deleting:
                continue
            wait = self._later.get(name, 0.0) - self._clock.now()
            if wait > 0 and handle is not None and handle.unmoved:
                again = min(again, wait) if again else wait
                stays.append((name, f"node {node} is drained, but {handle.unmoved}"))
                continue
            lost = ready_snapshots(handle)
            if lost and not record.drop_snapshots:
                why = f"it has snapshots that a move loses ({', '.join(lost)}); allow that with --drop-snapshots"
                stays.append((name, f"node {node} is drained, but {why}"))
                continue
            handed = record.moves and not self._is_unmade(name, command)
            if handed and (handle is None or not handle.machine):
                again = min(again, UNTOLD) if again else UNTOLD
                if handle is not None and handle.state is MachineState.FAILED:
                    stays.append(
                        (name, f"node {node} is drained, but has no such machine to hand over: {handle.detail}")
                    )
                continue
            exclude = self._moves.takers(node, record) if handed else frozenset((node,))
            wanted = wanted_of(vm, exclude=exclude)
            with self._books.alone(vm.id) as cluster:
                decision = place(wanted, cluster)
            if decision.node is not None:
                if handed:
                    return Turn(name, Duty.LEAVE, decision.node, tuple(stays))
                kept = msgspec.structs.replace(wanted, vm=_kept(vm.id))
                self._books.cluster.use(kept.vm, decision.node, kept)
                return Turn(name, Duty.MOVE, "", tuple(stays))
            stays.append((name, f"node {node} is drained, but {decision.summary}"))
        if stays:
            self._stuck.add(node)
        return Turn(stuck=tuple(stays), again=again)

    def _is_unmade(self, name: str, command: Entry[VmCommand]) -> bool:
        """Whether it is certain that nothing was made of it: it was placed, and its agent has not said that it began.

        A handle that names no machine does not tell that: one that was handed over, or whose handle got lost, has none
        until its agent speaks, and what stands there is all there is of it.
        """
        entry = self._view.handles.entries.get(HANDLES + name)
        placed = entry is not None and entry.value.state is MachineState.PLACED
        return placed and entry is not None and entry.mod_revision == command.create_revision

    def _came_back(self, left: _Left, node: str) -> bool:
        """Whether its departure was given up: it is the next one's turn, and later its own again."""
        handle = self._handle(left.name)
        if handle is None or handle.node != node or handle.attempt <= left.attempt or not handle.unmoved:
            return False
        self._later[left.name] = self._clock.now() + SETTLE
        return True

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
    """Under this id room is kept for a machine that will be placed anew."""
    return f"{vm} to be placed"
