"""Draining of a node, and the start of migrations.

The drain selects the next machine of a node: one at a time, and only one that another node accepts. A migration starts
if the target has the capacity, which is then reserved until the caches contain the migration.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.controllers import migration
from hostler.engine.controllers.decision import NOTHING, Act, Duty, Step, stuck
from hostler.engine.controllers.snapshot import name_of_command
from hostler.engine.controllers.transactions import departure_transaction
from hostler.engine.placement import objections, place, wanted_of
from hostler.keys.families import HANDLE, VM
from hostler.model.node import DrainMode, Lifecycle
from hostler.model.vm import MachineState, Power, ready_snapshots

if TYPE_CHECKING:
    from hostler.engine.controllers.allocations import Allocations
    from hostler.engine.controllers.snapshot import VmSnapshot
    from hostler.engine.runtime.guarded_writer import Txn
    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.node import NodeRecord, VmCommand
    from hostler.model.vm import VirtualMachine, VmHandle


SETTLE = 60.0
"""Seconds that a machine which has left has to start elsewhere before the next one goes anyway."""
UNTOLD = 5.0
"""Seconds after which to check again whether a node has reported its machine."""
_UP = (MachineState.RUNNING, MachineState.STOPPED, MachineState.FAILED)
VMS, HANDLES = VM.prefix(), HANDLE.prefix()


class Turn(msgspec.Struct, frozen=True):
    """The next machine of a node. `again`: check again after this many seconds; 0.0: a change will trigger it."""

    name: str | None = None
    duty: Duty = Duty.SERVE
    to: str = ""
    """The node to migrate to; empty: the machine is destroyed, and created again elsewhere."""
    stuck: tuple[tuple[str, str], ...] = ()
    """Machines that cannot leave, and why."""
    again: float = 0.0


class _Left(msgspec.Struct, frozen=True):
    name: str
    until: float
    attempt: int
    """The number of its last migration before this one."""


def duty_of(record: NodeRecord) -> Duty:
    """Return the meaning of the node's lifecycle for a machine whose turn it is not."""
    if record.lifecycle is Lifecycle.DECOMMISSIONED:
        return Duty.LEAVE
    if record.lifecycle is not Lifecycle.DRAINING or not record.drain.is_known:
        return Duty.SERVE
    return Duty.LEAVE if record.drain is DrainMode.MOVE else Duty.STAY_OFF


class Drains:
    """State of all drained nodes. After a change of leader, one more machine may leave at once."""

    def __init__(self, view: View, books: Allocations, moves: Moves, *, clock: Clock, stuck: set[str]) -> None:
        """`stuck`: receives the nodes with machines that no other node accepts."""
        self._view, self._books, self._moves, self._clock = view, books, moves, clock
        self._left: dict[str, _Left] = {}
        self._later: dict[str, float] = {}  # machines whose migration failed, and when to retry
        self._stuck = stuck

    def next(self, node: str, record: NodeRecord) -> Turn:
        """Return the next machine."""
        here = sorted(((name_of_command(e.value), e) for e in self._view.commands_of(node)), key=itemgetter(0))
        self._stuck.discard(node)
        if duty_of(record) is Duty.STAY_OFF:
            return self._next_to_stop(here)
        if any((e.value.deleting or e.value.departing) and self._stays(name) for name, e in here):
            return Turn()  # it is leaving; a machine that its owner deleted is not waited for
        left = self._left.get(node)
        if left is not None:
            wait = left.until - self._clock.now()
            if wait > 0 and not self._has_arrived(left.name, node) and not self._came_back(left, node):
                return Turn(again=min(1.0, wait))
            del self._left[node]
        return self._next_to_move(node, record, here)

    def began(self, node: str, name: str) -> None:
        """Record that the machine was commanded to leave or to stop."""
        handle = self._handle(name)
        self._left[node] = _Left(name, self._clock.now() + SETTLE, 0 if handle is None else handle.attempt)

    def arrives(self, vm: str) -> None:
        """Release the reservation of a machine that is about to be placed."""
        self._books.cluster.free(_reservation_id(vm))

    def stuck_step(self, seen: VmSnapshot, why: str) -> Step:
        """Return the step that stores with the command why the machine is still here."""
        if seen.command is None or seen.command.value.deleting:
            return NOTHING
        reasons = stuck(seen.command.value.reasons, why)
        if reasons == seen.command.value.reasons:
            return NOTHING
        return Step(Act.INSTRUCT, msgspec.structs.replace(seen.command.value, reasons=reasons))

    # Internal

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
                kept = msgspec.structs.replace(wanted, vm=_reservation_id(vm.id))
                self._books.cluster.use(kept.vm, decision.node, kept)
                return Turn(name, Duty.MOVE, "", tuple(stays))
            stays.append((name, f"node {node} is drained, but {decision.summary}"))
        if stays:
            self._stuck.add(node)
        return Turn(stuck=tuple(stays), again=again)

    def _is_unmade(self, name: str, command: Entry[VmCommand]) -> bool:
        """Return whether certainly nothing was created: it was placed, and its agent has not reported a start.

        A handle without a machine does not prove that: a migrated machine, or one whose handle was lost, has none until
        its agent reports, and the machine on the node may be its only copy.
        """
        entry = self._view.handles.entries.get(HANDLES + name)
        placed = entry is not None and entry.value.state is MachineState.PLACED
        return placed and entry is not None and entry.mod_revision == command.create_revision

    def _came_back(self, left: _Left, node: str) -> bool:
        """Return whether its migration was given up: the next machine has its turn, and this one is retried later."""
        handle = self._handle(left.name)
        if handle is None or handle.node != node or handle.attempt <= left.attempt or not handle.unmoved:
            return False
        self._later[left.name] = self._clock.now() + SETTLE
        return True

    def _has_arrived(self, name: str, node: str) -> bool:
        vm, handle = self._vm(name), self._handle(name)
        if vm is None or vm.deleting or handle is None:
            return True
        return handle.state in _UP and handle.node != node

    def _stays(self, name: str) -> bool:
        """Return whether its owner wants it: a command that removes it from the node is then a move."""
        vm = self._vm(name)
        return vm is not None and not vm.deleting

    def _vm(self, name: str) -> VirtualMachine | None:
        entry = self._view.vms.entries.get(VMS + name)
        return None if entry is None else entry.value

    def _handle(self, name: str) -> VmHandle | None:
        entry = self._view.handles.entries.get(HANDLES + name)
        return None if entry is None else entry.value


def _reservation_id(vm: str) -> str:
    """Return the id under which capacity is reserved for a machine that will be placed again."""
    return f"{vm} to be placed"


class Moves:
    """Possible targets of machines, as known to the leader."""

    def __init__(self, view: View, books: Allocations) -> None:
        self._view, self._books = view, books

    def against(self, seen: VmSnapshot, vm: VirtualMachine, to: str) -> str:
        """Return why the machine cannot move there; empty: it can."""
        target = self._view.members.get(node=to)
        source = None if seen.member is None else seen.member.value
        why = migration.unfit(vm, source, to, None if target is None else target.value)
        if why is None and to in seen.foreign:
            why = f"move to {to}: that node has another machine of the same id"
        if why is not None:
            return why
        with self._books.alone(vm.id) as cluster:
            found = objections(wanted_of(vm), cluster, to)
        return f"move to {to}: {'; '.join(found)}" if found else ""

    def start_transaction(
        self, seen: VmSnapshot, to: str, fence: int, *, wish: int = 0, stop: bool = False
    ) -> Txn | None:
        """Return the transaction that starts the migration. None: there is no such node, or no such machine."""
        target = self._view.members.get(node=to)
        return None if target is None else departure_transaction(seen, target, wish=wish, stop=stop, fence=fence)

    def takers(self, node: str, record: NodeRecord) -> frozenset[str]:
        """Return nodes that a machine of this node cannot be migrated to."""
        return frozenset(
            entry.parts["node"]
            for entry in self._view.members.entries.values()
            if not _hands(record, entry) or entry.parts["node"] == node
        )


def _hands(record: NodeRecord, other: Entry[NodeRecord]) -> bool:
    return record.moves and other.value.moves and other.value.driver == record.driver
