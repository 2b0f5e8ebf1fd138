"""Phase of a machine, computed from its spec, the status from its agent and the liveness of its node. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.model.api import Phase, VmRow, VmView
from hostler.model.vm import MachineState, OnNodeLoss, Power, Step

if TYPE_CHECKING:
    from hostler.keys.entry import Entry
    from hostler.model.retained_api import RetainedRef
    from hostler.model.vm import VirtualMachine, VmHandle

_PHASES = {
    MachineState.PENDING: Phase.PENDING,
    MachineState.PLACED: Phase.PLACED,
    MachineState.CREATING: Phase.CREATING,
    MachineState.STARTING: Phase.STARTING,
    MachineState.RUNNING: Phase.RUNNING,
    MachineState.STOPPING: Phase.STOPPING,
    MachineState.STOPPED: Phase.STOPPED,
    MachineState.FAILED: Phase.FAILED,
    MachineState.DELETING: Phase.STOPPING,  # not deleted by its owner: removed from this node, to be created on another
    MachineState.GONE: Phase.PENDING,
    MachineState.ARRIVING: Phase.MOVING,
    MachineState.DEPARTED: Phase.MOVING,
}
_WITHOUT_NODE = (MachineState.PENDING, MachineState.GONE)
_NOT_BOOTED = (MachineState.PENDING, MachineState.PLACED, MachineState.STOPPED, MachineState.GONE)


def phase(vm: VirtualMachine, handle: VmHandle | None, alive: bool) -> Phase:
    """Return the phase. `alive`: the node of the handle sends heartbeats."""
    if vm.deleting:
        return Phase.DELETING
    if handle is None:
        return Phase.PENDING
    if handle.node and not alive and handle.state not in _WITHOUT_NODE:
        return Phase.SILENT
    if handle.state is MachineState.RUNNING and handle.paused:
        return Phase.PAUSED
    return _PHASES.get(handle.state, Phase.UNKNOWN)


def settled(vm: VirtualMachine, handle: VmHandle | None, alive: bool) -> bool:
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


def booted(handle: VmHandle | None) -> bool:
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
        available=now is Phase.RUNNING and readiness is not None and readiness.step is Step.AVAILABLE,
        readiness=readiness,
        access=None if seen is None else seen.access,
        disk_since=0.0 if handle is None else handle.disk_since,
        retained=retained,
        warnings=warnings,
        settled=settled(vm, handle, alive),
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
        available=now is Phase.RUNNING and readiness is not None and readiness.step is Step.AVAILABLE,
        detail=detail if len(detail) <= longest else f"{detail[: longest - 1]}…",
        cpus=vm.spec.cpus,
        memory_mib=vm.spec.memory_mib,
        labels=vm.labels,
        created_at=vm.created_at,
        expires_at=vm.expires_at,
    )


def _detail(now: Phase, vm: VirtualMachine, handle: VmHandle | None, alive: bool) -> str:
    if handle is None:
        return "" if vm.deleting else "waits for its first placement"
    if now is Phase.SILENT:
        return f"node {handle.node} is unreachable; the state of the machine is unknown"
    if vm.deleting and handle.node and not alive and handle.state not in _WITHOUT_NODE:
        return f"waits for node {handle.node}, which is unreachable"
    if handle.state is MachineState.DELETING and not vm.deleting:
        return handle.detail or f"being removed from node {handle.node}, to be created on another"
    not_moved = vm.move is not None and handle.moved >= vm.move.number
    return handle.detail or (handle.unmoved if not_moved else "")
