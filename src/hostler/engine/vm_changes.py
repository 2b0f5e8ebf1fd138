"""Changes of a VM record by each request. Pure: takes the record and returns the changed one, or raises the reason.

A function that changes nothing returns the same record. `put_changed` returns the write of a record with its next
`generation`; for the other functions the caller sets it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from hostler.errors import Conflict, Invalid, NotFound
from hostler.keys.families import VM
from hostler.keys.template import check_home, check_new
from hostler.model.access import HIDDEN
from hostler.model.name import fold
from hostler.model.node import Lifecycle
from hostler.model.vm import (
    MachineState,
    Move,
    OnNodeLoss,
    Origin,
    Power,
    Restore,
    SnapshotState,
    VirtualMachine,
    ready_snapshots,
)
from hostler.model.vm_api import MAX_NAME
from hostler.model.workload import instance_parts
from hostler.ports.store import Put

if TYPE_CHECKING:
    from hostler.keys.entry import Entry
    from hostler.model.node import NodeRecord
    from hostler.model.vm import VmHandle, VmSpec
    from hostler.model.vm_api import MoveRequest, VmCreate, VmUpdate

MAX_SNAPSHOTS = 64
SHAPE = ("cpus", "memory_mib", "disk_gib", "user_data", "ssh_keys")
"""Fields of the spec that can be changed. A running machine keeps the old values until its next boot."""


def check_name(name: str, what: str = "name") -> str:
    """Return `name` if it is valid for a new machine or snapshot; otherwise raise Invalid."""
    check_new(name, what)
    if len(name) > MAX_NAME:
        raise Invalid(f"{what} {name[:MAX_NAME]!r}…: has {len(name)} characters, at most {MAX_NAME} are allowed")
    return name


def create_vm(wanted: VmCreate, *, vm: str, org: str, project: str, wall: float) -> VirtualMachine:
    """Return a new machine with the id `vm`. Invalid: the name, org or project is not allowed."""
    check_home(org, project)
    check_user_data(wanted.spec.user_data)
    return VirtualMachine(
        id=vm,
        name=check_name(wanted.name),
        org=org,
        project=project,
        spec=wanted.spec,
        power=wanted.power,
        labels=wanted.labels,
        on_node_loss=wanted.on_node_loss,
        returns=wanted.on_node_loss is OnNodeLoss.FENCE,
        affinity=wanted.affinity,
        node_labels=wanted.node_labels,
        created_at=wall,
        expires_at=None if wanted.expires_in is None else wall + wanted.expires_in,
    )


def clone_spec(spec: VmSpec, origin: VirtualMachine, handle: VmHandle | None) -> VmSpec:
    """Return the spec of a clone of `origin`, with defaults from it. Conflict: the snapshot is not ready.

    Nothing keeps the snapshot from now on. A clone that is not created before the snapshot is deleted reports that and
    waits.
    """
    if spec.origin is None:
        return spec
    name = spec.origin.snapshot
    _check_kept(origin)
    _check_has(origin, name)
    _check_ready(origin, handle, name, "cloned")
    if spec.image not in ("", origin.spec.image):
        raise Invalid(
            f"image {spec.image!r}: a clone has the image of its origin {origin.name}, {origin.spec.image!r};"
            " leave it out"
        )
    if spec.user not in ("", origin.spec.user):
        raise Invalid(
            f"user {spec.user!r}: a clone has the user of its origin {origin.name}"
            f" ({origin.spec.user or 'its image has one'}); leave it out"
        )
    if 0 < spec.disk_gib < origin.spec.disk_gib:
        raise Invalid(
            f"disk_gib {spec.disk_gib}: less than the {origin.spec.disk_gib} of its origin {origin.name}; a disk may"
            " only grow"
        )
    return msgspec.structs.replace(
        spec,
        image=origin.spec.image,
        user=origin.spec.user,
        disk_gib=spec.disk_gib or origin.spec.disk_gib,
        origin=Origin(vm=origin.id, snapshot=name),
    )


def apply_update(vm: VirtualMachine, update: VmUpdate, *, wall: float) -> VirtualMachine:
    """Return the machine with the update applied. Invalid: a disk would shrink. Conflict: its workload defines it."""
    _check_kept(vm)
    shape = {name: value for name in SHAPE if (value := getattr(update, name)) is not UNSET}
    check_user_data(shape.get("user_data", ""))
    if shape.get("disk_gib", vm.spec.disk_gib) < vm.spec.disk_gib:
        raise Invalid(
            f"vm {vm.name}: disk_gib {shape['disk_gib']} is less than its {vm.spec.disk_gib}; a disk may only grow"
        )
    fields: dict[str, Any] = {"spec": msgspec.structs.replace(vm.spec, **shape)} if shape else {}
    if update.name is not UNSET:
        fields["name"] = update.name if update.name == vm.name else check_name(update.name)
    if update.labels is not UNSET:
        fields["labels"] = update.labels
    if update.on_node_loss is not UNSET:
        fields["on_node_loss"] = update.on_node_loss
        fields["returns"] = update.on_node_loss is OnNodeLoss.FENCE
    if update.expires_in is not UNSET:
        fields["expires_at"] = None if update.expires_in is None else wall + update.expires_in
    new = msgspec.structs.replace(vm, **fields)
    parts = instance_parts(vm.instance)
    if parts is not None and new != vm:
        raise Conflict(
            f"vm {vm.name}: it is instance {parts['instance']} of workload {parts['workload']}; change the workload"
        )
    return new


def check_user_data(text: str) -> None:
    """Raise Invalid for the placeholder that replaces user_data for callers who may not see it."""
    if text == HIDDEN:
        raise Invalid(f"user_data: {HIDDEN} is the placeholder for hidden text; write the text itself, or leave it out")


def changed_shape(old: VirtualMachine, new: VirtualMachine) -> tuple[str, ...]:
    """Return the fields of the spec in `SHAPE` that differ."""
    return tuple(name for name in SHAPE if getattr(old.spec, name) != getattr(new.spec, name))


def start(vm: VirtualMachine) -> VirtualMachine:
    """Set the desired power to on."""
    _check_kept(vm)
    return msgspec.structs.replace(vm, power=Power.ON)


def stop(vm: VirtualMachine) -> VirtualMachine:
    """Set the desired power to off."""
    _check_kept(vm)
    return msgspec.structs.replace(vm, power=Power.OFF)


def reset(vm: VirtualMachine) -> VirtualMachine:
    """Request one more reset. Conflict: the desired power is off."""
    _check_kept(vm)
    if vm.power is Power.OFF:
        raise Conflict(f"vm {vm.name}: it is off, there is nothing to reset; start it")
    return msgspec.structs.replace(vm, resets=vm.resets + 1)


def delete(vm: VirtualMachine) -> VirtualMachine:
    """Mark the machine for deletion."""
    return vm if vm.deleting else msgspec.structs.replace(vm, deleting=True)


def add_snapshot(vm: VirtualMachine, handle: VmHandle | None, name: str) -> VirtualMachine:
    """Add a snapshot. Conflict: it has one of this name, or too many."""
    _check_kept(vm)
    check_name(name, "snapshot")
    if name in vm.snapshots:
        raise Conflict(f"vm {vm.name}: it has a snapshot {name!r} already; choose another name, or drop that one")
    dropped = _not_answered(vm, handle)
    if name in dropped or (handle is not None and name in handle.snapshots):
        raise Conflict(f"vm {vm.name}: its old snapshot {name!r} is still being dropped; try again in a moment")
    if len(vm.snapshots) >= MAX_SNAPSHOTS:
        raise Conflict(f"vm {vm.name}: it has {len(vm.snapshots)} snapshots, which is the most; drop one first")
    return msgspec.structs.replace(vm, snapshots=(*vm.snapshots, name), dropped=dropped)


def request_restore(vm: VirtualMachine, handle: VmHandle | None, name: str) -> VirtualMachine:
    """Request a restore to a snapshot. NotFound: it has none of this name; Conflict: it is not ready."""
    _check_kept(vm)
    _check_has(vm, name)
    _check_ready(vm, handle, name, "restored")
    number = 1 if vm.restore is None else vm.restore.number + 1
    return msgspec.structs.replace(vm, restore=Restore(snapshot=name, number=number))


def request_move(
    vm: VirtualMachine,
    handle: VmHandle | None,
    wanted: MoveRequest,
    *,
    source: NodeRecord | None,
    target: NodeRecord | None,
) -> VirtualMachine:
    """Request a move to another node. NotFound: there is no such node; Conflict: it cannot move there, or is there.

    `source` is the node of the handle. The capacity is checked when the move begins.
    """
    _check_kept(vm)
    if target is None:
        raise NotFound(f"node {wanted.to}: not found; look at the list of nodes")
    if handle is None or not handle.node or source is None:
        raise Conflict(f"vm {vm.name}: it is on no node yet; wait until it is placed, then move it")
    if fold(handle.node) == fold(target.node):
        raise Conflict(f"vm {vm.name}: it is on node {target.node} already; name another one")
    for node in (source, target):
        if not node.moves:
            raise Conflict(
                f"node {node.node}: its machines ({node.driver or 'of an unknown kind'}) cannot be handed from node to"
                " node; snapshot and clone, or create the machine again"
            )
    if source.driver != target.driver:
        raise Conflict(
            f"node {target.node}: its machines are {target.driver}, those of node {source.node} are {source.driver};"
            " name a node of the same kind"
        )
    if target.lifecycle not in (Lifecycle.JOINING, Lifecycle.ON_DUTY):
        raise Conflict(f"node {target.node}: it is {target.lifecycle} and takes no machines; name another one")
    lost = ready_snapshots(handle)
    if lost and not wanted.drop_snapshots:
        raise Conflict(
            f"vm {vm.name}: its snapshots would be lost ({', '.join(lost)}), because they do not move; delete them, or"
            " allow it: --drop-snapshots"
        )
    number = 1 if vm.move is None else vm.move.number + 1
    return msgspec.structs.replace(vm, move=Move(to=fold(target.node), number=number, stop=wanted.stop))


def drop_snapshot(vm: VirtualMachine, handle: VmHandle | None, name: str) -> VirtualMachine:
    """Delete a snapshot. Conflict: it is being restored, or too many deletions are in progress."""
    _check_kept(vm)
    _check_has(vm, name)
    restore = vm.restore
    if restore is not None and restore.snapshot == name and (handle is None or handle.restored < restore.number):
        raise Conflict(f"vm {vm.name}: it is being restored to snapshot {name!r}; wait until that is done")
    gone = {**_not_answered(vm, handle), name: vm.generation + 1}
    if len(gone) > MAX_SNAPSHOTS:
        raise Conflict(
            f"vm {vm.name}: {len(gone) - 1} snapshots are still being dropped; wait until its node has done so"
        )
    return msgspec.structs.replace(vm, snapshots=tuple(other for other in vm.snapshots if other != name), dropped=gone)


def _not_answered(vm: VirtualMachine, handle: VmHandle | None) -> dict[str, int]:
    """Return snapshots that were deleted and may still exist. An agent that answers reports every one that it finds."""
    # the leader wrote this state, which says nothing about existing snapshots
    if handle is None or handle.state is MachineState.PLACED:
        return vm.dropped
    if not handle.node:  # there is no machine
        return {}
    return {name: generation for name, generation in vm.dropped.items() if generation > handle.generation}


def _check_kept(vm: VirtualMachine) -> None:
    if vm.deleting:
        raise Conflict(f"vm {vm.name}: it is being deleted; nothing else can be done with it")


def _check_has(vm: VirtualMachine, name: str) -> None:
    if name not in vm.snapshots:
        raise NotFound(f"vm {vm.name}: it has no snapshot {name!r}; look at its list")


def _check_ready(vm: VirtualMachine, handle: VmHandle | None, name: str, done: str) -> None:
    taken = None if handle is None else handle.snapshots.get(name)
    if taken is None:
        raise Conflict(f"vm {vm.name}: snapshot {name!r} is not taken yet; wait until it is ready")
    if taken.state is not SnapshotState.READY:
        why = f" ({taken.detail})" if taken.detail else ""
        raise Conflict(f"vm {vm.name}: snapshot {name!r} has failed{why}; another one can be {done}")


def put_changed(vm: Entry[VirtualMachine], **changes: Any) -> Put:
    """Return the write of a changed spec."""
    new = msgspec.structs.replace(vm.value, generation=vm.value.generation + 1, **changes)
    return Put(vm.key, VM.encode(new))
