"""The VMs of the warm pool, from the caches and from the recent actions of this leader.

The recorded actions only avoid writes that would fail: every write compares what it was based on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.engine.labs import pool_decide
from hostler.engine.labs.pool_decide import PoolState, Stocked, is_alike, is_available
from hostler.engine.labs.vm_reassignment import Held, unfit
from hostler.keys.families import HANDLE, VM
from hostler.model.lab import ORG, POOL_ORG
from hostler.model.node import Lifecycle
from hostler.model.vm import MachineState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hostler.engine.labs.pool_decide import Kind
    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.vm import VirtualMachine, VmHandle

OWN = 10.0
"""Seconds after which a requested VM that has not appeared counts as not created."""
_VMS, _HANDLES, _LABS = VM.prefix(org=POOL_ORG), HANDLE.prefix(org=POOL_ORG), HANDLE.prefix(org=ORG)


class PoolCache:
    """The pool VMs of one leadership. `changed` is called on every change."""

    def __init__(self, view: View, *, clock: Clock, changed: Callable[[], None], came: Callable[[str], None]) -> None:
        """`came`: called when a VM of this project has become ready."""
        self._view, self._clock, self._changed, self._came = view, clock, changed, came
        self._machines: dict[str, dict[str, None]] = {}  # keys, by project
        self._pending: dict[str, None] = {}  # handles of labs for which no node has room
        self._given: set[str] = set()
        self._unlucky: dict[str, float] = {}  # VMs that could not be assigned, and when
        self._since: dict[str, float] = {}  # since when a VM cannot be assigned
        self._own: dict[str, float] = {}  # VMs created but not in the cache yet, and until when that is assumed
        self._dropped: set[str] = set()

    def listen(self) -> list[Callable[[], None]]:
        """Start listening to changes. The returned functions end this."""
        view = self._view
        ends = [view.vms.listen(self._vm_changed), view.handles.listen(self._handle_changed)]
        for key in view.vms.entries:
            self._vm_changed(key)
        for key in view.handles.entries:
            self._handle_changed(key)
        return ends

    # State

    def pick(self, kind: Kind) -> Held | None:
        """Return a VM that can be assigned: the oldest, but those whose assignment failed last."""
        ready: list[tuple[float, float, str, Held]] = []
        for entry in self._entries(kind.project):
            held = self._held(entry)
            vm = entry.value
            if held is not None and vm.id not in self._dropped and is_alike(vm, kind) and self._is_ready(held):
                ready.append((self._unlucky.get(vm.id, 0.0), vm.created_at, vm.id, held))
        return min(ready, key=lambda one: one[:3])[3] if ready else None

    def stock(self, kinds: Mapping[str, Kind]) -> list[Stocked]:
        """Return all VMs that are not assigned, with their condition."""
        return [
            Stocked(entry, self._judge(entry, kinds.get(project)))
            for project in self._machines
            for entry in self._entries(project)
        ]

    def coming(self) -> int:
        """Return the number of VMs that were requested and are not in stock yet."""
        now = self._clock.now()
        self._own = {vm: until for vm, until in self._own.items() if until > now}
        return len(self._own)

    def waiting(self) -> Iterator[VirtualMachine]:
        """Yield the VMs of labs that no node has room for."""
        for key in self._pending:
            entry = self._view.vms.entries.get(VM.prefix() + key.removeprefix(HANDLE.prefix()))
            if entry is not None and not entry.value.deleting:
                yield entry.value

    def serves(self, node: str) -> bool:
        """Return whether the node is reachable and accepts VMs."""
        member = self._view.members.get(node=node)
        on_duty = member is not None and member.value.lifecycle is Lifecycle.ON_DUTY
        return on_duty and self._view.alive.get(node=node) is not None

    # Own actions

    def give(self, vm: str) -> None:
        """Record that the VM is offered to a lab."""
        self._given.add(vm)

    def take_back(self, vm: str) -> None:
        """Record that the VM was not assigned; other VMs now go first."""
        if vm in self._given:
            self._given.discard(vm)
            self._unlucky[vm] = self._clock.now()

    def is_given(self, vm: str) -> bool:
        return vm in self._given

    def record_created(self, vm: str, *, certain: bool = True) -> None:
        """Record that the VM was requested; or, if not `certain`, that it was not."""
        if certain:
            self._own[vm] = self._clock.now() + OWN
        else:
            self._own.pop(vm, None)

    def record_deleted(self, vm: str, *, certain: bool = True) -> None:
        """Record that the VM was deleted; or, if not `certain`, that it may not have been."""
        if certain:
            self._dropped.add(vm)
        else:
            self._dropped.discard(vm)

    # Internals

    def _entries(self, project: str) -> Iterator[Entry[VirtualMachine]]:
        for key in self._machines.get(project, ()):
            entry = self._view.vms.entries.get(key)
            if entry is not None and entry.value.id not in self._given:
                yield entry

    def _handle(self, vm: Entry[VirtualMachine]) -> Entry[VmHandle] | None:
        return self._view.handles.entries.get(HANDLE.prefix() + vm.key.removeprefix(VM.prefix()))

    def _held(self, vm: Entry[VirtualMachine]) -> Held | None:
        handle = self._handle(vm)
        node = "" if handle is None else handle.value.node
        command = self._view.commands.get(node=node, vm=vm.value.id) if node else None
        return None if handle is None or command is None else Held(vm, handle, command)

    def _is_ready(self, held: Held) -> bool:
        return is_available(held.handle.value) and self.serves(held.handle.value.node) and not unfit(held)

    def _judge(self, entry: Entry[VirtualMachine], kind: Kind | None) -> PoolState:
        vm, now = entry.value, self._clock.now()
        if vm.id in self._dropped:
            return PoolState.GOING
        held, handle = self._held(entry), self._handle(entry)
        ready = held is not None and self._is_ready(held)
        waited = 0.0
        if not ready:
            waited = now - self._since.setdefault(vm.id, now)
        elif self._since.pop(vm.id, None) is not None:
            self._came(vm.project)
        node = "" if handle is None else handle.value.node
        away = bool(node) and self._view.alive.get(node=node) is None
        return pool_decide.pool_state(
            vm, None if handle is None else handle.value, kind, ready=ready, away=away, waited=waited
        )

    def _vm_changed(self, key: str) -> None:
        if not key.startswith(_VMS):
            return
        parts = VM.parse(key)
        project, vm = parts["project"], parts["vm"]
        entry = self._view.vms.entries.get(key)
        self._own.pop(vm, None)
        if entry is None or entry.value.deleting:
            self._dropped.discard(vm)
        if entry is not None:
            self._machines.setdefault(project, {})[key] = None
        else:
            self._machines.get(project, {}).pop(key, None)
            self._given.discard(vm)
            self._unlucky.pop(vm, None)
            self._since.pop(vm, None)
        self._changed()

    def _handle_changed(self, key: str) -> None:
        if key.startswith(_HANDLES):
            self._changed()
        elif key.startswith(_LABS):
            entry = self._view.handles.entries.get(key)
            if entry is not None and entry.value.state is MachineState.PENDING:
                self._pending[key] = None
                self._changed()
            else:
                self._pending.pop(key, None)
