"""Source of a clone: a clone can only be created on the node of its origin. Pure, except that it reads the caches.

Nothing keeps a snapshot for a clone that is not created yet: the snapshot may be deleted, and its machine deleted or
moved. Such a clone then waits and reports the reason; its owner deletes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.engine.placement import Decision
from hostler.model.trace import Reason
from hostler.model.vm import SnapshotState

if TYPE_CHECKING:
    from hostler.engine.view import View
    from hostler.model.vm import Origin, VirtualMachine

_INSTEAD = "delete this machine, and clone another snapshot"


def node_of(view: View, vm: VirtualMachine, origin: Origin) -> tuple[str, str]:
    """Return the node of the origin and an empty text; or no node, and the reason."""
    ids = {"org": vm.org, "project": vm.project, "vm": origin.vm}
    origin_vm, handle = view.vms.get(**ids), view.handles.get(**ids)
    if origin_vm is None or origin_vm.value.deleting:
        return "", f"its origin, machine {origin.vm}, was deleted; {_INSTEAD}"
    name = origin_vm.value.name
    if origin.snapshot not in origin_vm.value.snapshots:
        return "", f"its origin, snapshot {origin.snapshot!r} of {name}, was dropped; {_INSTEAD}"
    if handle is None or not handle.value.node:
        return "", f"its origin {name} is on no node at present"
    taken = handle.value.snapshots.get(origin.snapshot)
    if taken is not None and taken.state is not SnapshotState.READY:
        return "", f"its origin, snapshot {origin.snapshot!r} of {name}, is {taken.detail or 'not usable'}; {_INSTEAD}"
    return handle.value.node, ""


def nowhere(origin: Origin, why: str) -> Decision:
    """Return the decision that no node fits, with that reason."""
    reasons = (Reason(subject=f"machine {origin.vm}", why=why),)
    return Decision.no_node(why, reasons)
