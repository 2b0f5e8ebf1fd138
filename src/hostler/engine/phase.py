"""Phase of a machine, and the number of machines and labs per phase.

The phase is a pure function of the spec, the status from the agent, and the liveness of the node. The counts are built
at the first request and then updated with each change, so that a hundred thousand machines are counted only once.
"""

from __future__ import annotations

import asyncio
import heapq
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from hostler.keys.families import ALIVE, HANDLE, VM
from hostler.keys.lab import LAB
from hostler.kit.tasks import Fairness
from hostler.model.access import EVERYWHERE
from hostler.model.lab import ORG, LabEvent, lab_project
from hostler.model.vm import MachineState, OnNodeLoss, Power, Step
from hostler.model.vm_api import VmPhase, VmRow, VmView

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hostler.engine.request import Caller
    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.lab import LabUser
    from hostler.model.vm import VirtualMachine, VmHandle
    from hostler.model.vm_api import RetainedRef


_PHASES = {
    MachineState.PENDING: VmPhase.PENDING,
    MachineState.PLACED: VmPhase.PLACED,
    MachineState.CREATING: VmPhase.CREATING,
    MachineState.STARTING: VmPhase.STARTING,
    MachineState.RUNNING: VmPhase.RUNNING,
    MachineState.STOPPING: VmPhase.STOPPING,
    MachineState.STOPPED: VmPhase.STOPPED,
    MachineState.FAILED: VmPhase.FAILED,
    MachineState.DELETING: VmPhase.STOPPING,  # removed from this node, to be created on another
    MachineState.GONE: VmPhase.PENDING,
    MachineState.ARRIVING: VmPhase.MOVING,
    MachineState.DEPARTED: VmPhase.MOVING,
}
_WITHOUT_NODE = (MachineState.PENDING, MachineState.GONE)
_NOT_BOOTED = (MachineState.PENDING, MachineState.PLACED, MachineState.STOPPED, MachineState.GONE)


def phase(vm: VirtualMachine, handle: VmHandle | None, alive: bool) -> VmPhase:
    """Return the phase. `alive`: the node of the handle sends heartbeats."""
    if vm.deleting:
        return VmPhase.DELETING
    if handle is None:
        return VmPhase.PENDING
    if handle.node and not alive and handle.state not in _WITHOUT_NODE:
        return VmPhase.SILENT
    if handle.state is MachineState.RUNNING and handle.paused:
        return VmPhase.PAUSED
    return _PHASES.get(handle.state, VmPhase.UNKNOWN)


def is_settled(vm: VirtualMachine, handle: VmHandle | None, alive: bool) -> bool:
    """Return whether the status matches the spec. Changes that wait for the next boot do not count."""
    if vm.deleting or handle is None or not alive or handle.generation < vm.generation:
        return False
    wanted = MachineState.RUNNING if vm.power is Power.ON else MachineState.STOPPED
    return (
        (handle.state is wanted or (handle.ended and vm.power is Power.ON))
        and handle.resets >= vm.resets
        and (vm.restore is None or handle.restored >= vm.restore.number)
        and (vm.move is None or handle.moved >= vm.move.number)
        and all(name in handle.snapshots for name in vm.snapshots)
    )


def may_run_older_spec(handle: VmHandle | None) -> bool:
    """Return whether a machine may be running with an older spec."""
    return handle is not None and handle.state not in _NOT_BOOTED


def view_of(
    entry: Entry[VirtualMachine],
    handle: VmHandle | None,
    alive: bool,
    *,
    at_next_boot: tuple[str, ...] = (),
    retained: tuple[RetainedRef, ...] = (),
    warnings: tuple[str, ...] = (),
) -> VmView:
    """Return the API form of a machine. `at_next_boot`: fields in addition to those its agent reported.

    `retained`: retained disks of the machine.
    """
    vm = entry.value
    seen = None if handle is None or handle.state in _WITHOUT_NODE else handle
    now = phase(vm, handle, alive)
    waiting = () if handle is None else handle.at_next_boot
    readiness = None if seen is None else seen.readiness
    return VmView(
        id=vm.id,
        name=vm.name,
        org=vm.org,
        project=vm.project,
        spec=vm.spec,
        power=vm.power,
        phase=now,
        node=None if seen is None else seen.node or None,
        address="" if seen is None else seen.address,
        detail=_detail(now, vm, handle, alive),
        labels=vm.labels,
        on_node_loss=OnNodeLoss.RECREATE if vm.recreates else vm.on_node_loss,
        affinity=vm.affinity,
        node_labels=vm.node_labels,
        at_next_boot=tuple(dict.fromkeys((*waiting, *at_next_boot))),
        snapshots={name: None if handle is None else handle.snapshots.get(name) for name in vm.snapshots},
        restore=vm.restore,
        move=vm.move,
        moved=0 if handle is None else handle.moved,
        available=now is VmPhase.RUNNING and readiness is not None and readiness.step is Step.AVAILABLE,
        readiness=readiness,
        access=None if seen is None else seen.access,
        disk_since=0.0 if handle is None else handle.disk_since,
        retained=retained,
        warnings=warnings,
        settled=is_settled(vm, handle, alive),
        created_at=vm.created_at,
        expires_at=vm.expires_at,
        generation=vm.generation,
        revision=entry.mod_revision,
    )


def row_of(entry: Entry[VirtualMachine], handle: VmHandle | None, alive: bool, *, longest: int) -> VmRow:
    """Return the short API form. `longest`: maximum length of the detail."""
    vm = entry.value
    seen = None if handle is None or handle.state in _WITHOUT_NODE else handle
    now = phase(vm, handle, alive)
    readiness = None if seen is None else seen.readiness
    detail = _detail(now, vm, handle, alive)
    return VmRow(
        id=vm.id,
        name=vm.name,
        org=vm.org,
        project=vm.project,
        phase=now,
        state=None if handle is None else handle.state,
        node=None if seen is None else seen.node or None,
        available=now is VmPhase.RUNNING and readiness is not None and readiness.step is Step.AVAILABLE,
        detail=detail if len(detail) <= longest else f"{detail[: longest - 1]}…",
        cpus=vm.spec.cpus,
        memory_mib=vm.spec.memory_mib,
        labels=vm.labels,
        created_at=vm.created_at,
        expires_at=vm.expires_at,
    )


def _detail(now: VmPhase, vm: VirtualMachine, handle: VmHandle | None, alive: bool) -> str:
    if handle is None:
        return "" if vm.deleting else "waits for its first placement"
    if now is VmPhase.SILENT:
        return f"node {handle.node} is unreachable; the state of the machine is unknown"
    if vm.deleting and handle.node and not alive and handle.state not in _WITHOUT_NODE:
        return f"waits for node {handle.node}, which is unreachable"
    if handle.state is MachineState.DELETING and not vm.deleting:
        return handle.detail or f"being removed from node {handle.node}, to be created on another"
    not_moved = vm.move is not None and handle.moved >= vm.move.number
    return handle.detail or (handle.unmoved if not_moved else "")


WATCHED = (VmPhase.FAILED, VmPhase.SILENT, VmPhase.PAUSED, VmPhase.PENDING)
"""Phases whose machines are also kept by name."""
REFUSALS = (LabEvent.REFUSED, LabEvent.FAILED)
LOOKED_AT = 2_000
"""Number of machines of one phase that are scanned for callers who do not see all of them."""
_VMS, _HANDLES, _LABS = VM.prefix(), HANDLE.prefix(), LAB.prefix()


class ScopeCounts:
    """Counts by scope (`*`, `org`, `org/project`) and phase."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[str, int]] = {}
        self._known: dict[str, tuple[str, str, str]] = {}  # by key: org, project, phase

    def phase_of(self, key: str) -> str | None:
        """Return the phase that is counted for the key."""
        found = self._known.get(key)
        return None if found is None else found[2]

    def set(self, key: str, org: str, project: str, now: str | None) -> None:
        """Set the phase of a key; None: remove it."""
        before = self._known.get(key)
        if before is not None:
            if before[2] == now:
                return
            self._add(before, -1)
            del self._known[key]
        if now is not None:
            self._known[key] = found = (org, project, now)
            self._add(found, 1)

    def keys(self) -> Iterator[str]:
        """Return all keys that are counted."""
        return iter(tuple(self._known))

    def seen_by(self, caller: Caller) -> dict[str, int]:
        """Return the counts by phase, of what the caller sees."""
        found: dict[str, int] = {}
        for scope in _scopes(caller.memberships):
            for name, count in self._counts.get(scope, {}).items():
                found[name] = found.get(name, 0) + count
        return found

    def _add(self, of: tuple[str, str, str], change: int) -> None:
        org, project, name = of
        for scope in (EVERYWHERE, org, f"{org}/{project}"):
            counts = self._counts.setdefault(scope, {})
            counts[name] = counts.get(name, 0) + change
            if not counts[name]:
                del counts[name]
                if not counts:
                    del self._counts[scope]


class PhaseCounts:
    """Counts machines and labs by phase. One per process."""

    def __init__(self, view: View, *, clock: Clock) -> None:
        self._view, self._clock = view, clock
        self._loading = asyncio.Lock()
        self._loaded = self._listening = False
        self._vms, self._labs = ScopeCounts(), ScopeCounts()
        self._on: dict[str, dict[str, None]] = {}  # key suffixes of machines, by the liveness key of their node
        self._node: dict[str, str] = {}  # the reverse index
        self._since: dict[VmPhase, dict[str, float]] = {name: {} for name in WATCHED}
        self._pending: list[tuple[float, str]] = []  # (since, key suffix), oldest first; some are no longer pending
        self._long: dict[str, float] = {}  # pending since before the last call of `waited`
        self._waits = ScopeCounts()
        self._refused: dict[str, None] = {}  # keys of labs whose last event is a refusal or failure

    async def load(self) -> None:
        """Count the contents of the caches, unless already done, and follow them from then on."""
        async with self._loading:
            if not self._listening:  # first, because counting takes time
                self._listening = True
                self._view.vms.listen(self._vm_changed)
                self._view.handles.listen(self._handle_changed)
                self._view.alive.listen(self._node_changed)
                self._view.labs.listen(self._lab_changed)
            if not self._loaded:
                fairness = Fairness()
                for key in tuple(self._view.vms.entries):
                    self._look(key[len(_VMS) :], loading=True)
                    await fairness.share()
                for key in tuple(self._view.labs.entries):
                    self._lab_changed(key)
                    await fairness.share()
                self._loaded = True

    def vms(self, caller: Caller) -> dict[str, int]:
        """Return the number of machines by phase."""
        return self._vms.seen_by(caller)

    def labs(self, caller: Caller) -> dict[str, int]:
        """Return the number of labs by phase."""
        return self._labs.seen_by(caller)

    def machines_in(self, caller: Caller, name: VmPhase, few: int) -> list[tuple[Entry[VirtualMachine], str, float]]:
        """Return some machines in a `WATCHED` phase that the caller sees: each with reason and time since."""
        return self._some(caller, self._since[name], few)

    async def waited(self, before: float) -> None:
        """Find machines that have been pending since before that instant, for `waiting`."""
        fairness = Fairness()
        while self._pending and self._pending[0][0] <= before:
            since, tail = heapq.heappop(self._pending)
            vm = self._view.vms.entries.get(_VMS + tail)
            if vm is not None and self._since[VmPhase.PENDING].get(tail) == since:
                self._long[tail] = since
                self._waits.set(tail, vm.value.org, vm.value.project, VmPhase.PENDING.value)
            await fairness.share()

    def waiting(self, caller: Caller, few: int) -> tuple[int, list[tuple[Entry[VirtualMachine], str, float]]]:
        """Return the number of machines found by `waited` that the caller sees, and some of them.

        Each has its reason and the time since which it is pending.
        """
        count = self._waits.seen_by(caller).get(VmPhase.PENDING.value, 0)
        return count, self._some(caller, self._long, few) if count else []

    def _some(self, caller: Caller, of: dict[str, float], few: int) -> list[tuple[Entry[VirtualMachine], str, float]]:
        found: list[tuple[Entry[VirtualMachine], str, float]] = []
        for number, (tail, since) in enumerate(of.items()):
            if len(found) == few or number == LOOKED_AT:
                break
            vm = self._view.vms.entries.get(_VMS + tail)
            if vm is not None and caller.sees(vm.value.org, vm.value.project):
                handle = self._view.handles.entries.get(_HANDLES + tail)
                found.append((vm, "" if handle is None else handle.value.detail, since))
        return found

    def refusals(self, caller: Caller, after: float) -> list[Entry[LabUser]]:
        """Return users that the caller sees whose last event, since that instant, is that they got no lab."""
        found = []
        for key in tuple(self._refused):
            entry = self._view.labs.entries.get(key)
            if entry is None or entry.value.news[-1].at < after:
                continue
            if caller.sees(ORG, lab_project(entry.value.user)):
                found.append(entry)
        return found

    # Changes

    def _vm_changed(self, key: str) -> None:
        self._look(key[len(_VMS) :])

    def _handle_changed(self, key: str) -> None:
        self._look(key[len(_HANDLES) :])

    def _node_changed(self, key: str) -> None:
        for tail in tuple(self._on.get(key, ())):
            self._look(tail)

    def _lab_changed(self, key: str) -> None:
        entry = self._view.labs.entries.get(key)
        record = None if entry is None else entry.value
        lab = None if record is None else record.lab
        self._labs.set(key, ORG, key[len(_LABS) :], None if lab is None else lab.phase.value)
        refused = record is not None and lab is None and bool(record.news) and record.news[-1].event in REFUSALS
        if refused:
            self._refused[key] = None
        else:
            self._refused.pop(key, None)

    def _look(self, tail: str, *, loading: bool = False) -> None:
        """Update one machine to its current state."""
        view = self._view
        vm = view.vms.entries.get(_VMS + tail)
        entry = view.handles.entries.get(_HANDLES + tail)
        handle = None if entry is None else entry.value
        node = "" if vm is None or handle is None or not handle.node else _life(handle.node)
        self._place(tail, node)
        before = self._vms.phase_of(tail)
        if vm is None:
            self._vms.set(tail, "", "", None)
            self._watch(tail, before, None, 0.0)
            return
        now = phase(vm.value, handle, node in view.alive.entries)
        self._vms.set(tail, vm.value.org, vm.value.project, now.value)
        if before != now.value:
            seen_at = vm.value.created_at if handle is None else handle.seen_at
            self._watch(tail, before, now, seen_at if loading else self._clock.wall())

    def _watch(self, tail: str, before: str | None, now: VmPhase | None, at: float) -> None:
        if before in WATCHED:
            self._since[VmPhase(before)].pop(tail, None)
        if self._long.pop(tail, None) is not None:
            self._waits.set(tail, "", "", None)
        if now in WATCHED:
            self._since[now][tail] = at
        if now is VmPhase.PENDING:
            pending = self._since[VmPhase.PENDING]
            # `waited` is not called, and most entries are obsolete
            if len(self._pending) > 2 * len(pending) + LOOKED_AT:
                self._pending = [(since, one) for one, since in pending.items() if one not in self._long]
                heapq.heapify(self._pending)
            else:
                heapq.heappush(self._pending, (at, tail))

    def _place(self, tail: str, node: str) -> None:
        before = self._node.get(tail, "")
        if before == node:
            return
        if before:
            on: dict[str, Any] = self._on[before]
            del on[tail]
            if not on:
                del self._on[before]
            del self._node[tail]
        if node:
            self._on.setdefault(node, {})[tail] = None
            self._node[tail] = node


@lru_cache(maxsize=20_000)
def _life(node: str) -> str:
    """Return the key that exists while the node sends heartbeats."""
    return ALIVE.fill(node=node)


def _scopes(memberships: Sequence[str]) -> list[str]:
    """Return each scope once: a project of an org that is listed as a whole is left out."""
    if EVERYWHERE in memberships:
        return [EVERYWHERE]
    mine = set(memberships)
    return [one for one in sorted(mine) if "/" not in one or one.partition("/")[0] not in mine]
