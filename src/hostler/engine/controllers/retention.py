"""Retained machines: which disk returns to which machine, and garbage collection. Pure, except that it reads caches."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.controllers.decision import to_reinstate
from hostler.engine.placement import Decision
from hostler.model.trace import Reason
from hostler.model.vm import MachineState, has_disk

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.model.node import NodeRecord, Retained
    from hostler.model.vm import VirtualMachine, VmHandle

RETENTION = 7 * 86400.0
LISTS_WITHIN = 60.0
"""Seconds within which a node that is back has listed the machines that it retained."""


class Tie(msgspec.Struct, frozen=True, kw_only=True):
    """Location of the disk of an unplaced virtual machine."""

    node: str = ""
    """Empty: no node has it, for the reason `why`."""
    why: str
    only: bool = True
    """It is placed there, or not at all."""
    lasts: float = math.inf
    """Seconds after which to look again."""


def keeps_disk(member: NodeRecord | None, retained: Retained) -> bool:
    """Return whether the node uses the storage location of the retained machine."""
    return member is not None and (not retained.place or member.place in ("", retained.place))


def loss_reason(view: View, entry: Entry[Retained]) -> str:
    """Return why no node can restore a retained machine or delete its disk; empty: its node can, once reachable."""
    node, member = entry.parts["node"], view.members.get(node=entry.parts["node"])
    if member is None:
        is_gone = view.alive.get(node=node) is None and not view.members.unreadable
        return f"node {node} was removed" if is_gone else ""
    if keeps_disk(member.value, entry.value):
        return ""
    now = member.value.place
    return f"it is in storage location {entry.value.place} of node {node}, which now uses {now}"


def tie(
    view: View, vm: VirtualMachine, handle: VmHandle | None, *, reachable_for: Callable[[str], float]
) -> Tie | None:
    """Return where an unplaced virtual machine gets its disk back; None: it gets a new one, on any node.

    `reachable_for`: the seconds for which a node has been reachable. A node that has just come back may not have listed
    the disk yet.
    """
    wanted = to_reinstate(vm, handle)
    if wanted is not None:
        ids = {"node": wanted.node, "name": wanted.name}
        entry = view.retained.get(**ids)
        if entry is None or view.retained_requests.get(**ids) is not None:
            return Tie(
                why=f"retained machine {wanted.name} of node {wanted.node}, which it gets its disk from, was deleted"
            )
        why = loss_reason(view, entry)
        if why:
            return Tie(why=f"its disk is in retained machine {wanted.name}, and {why}")
        return Tie(node=wanted.node, why=f"its disk is retained on node {wanted.node}")
    node = "" if handle is None else handle.taken_from
    if not node or view.alive.get(node=node) is None:
        return None
    if not any(entry.parts["node"] == node and not loss_reason(view, entry) for entry in view.retained_of(vm.id)):
        left = LISTS_WITHIN - reachable_for(node)
        if left <= 0:
            return None
        why = f"its disk may be on node {node}, which has just come back"
        return Tie(node=node, why=why, only=not vm.recreates, lasts=left)
    return Tie(node=node, why=f"its disk is retained on node {node}, which is back", only=not vm.recreates)


def nowhere(why: str) -> Decision:
    """Return the decision that no node fits, with that reason."""
    reasons = (Reason(subject="its disk", why=why),)
    return Decision.no_node(why, reasons)


def kept_for(view: View, entry: Entry[Retained]) -> str:
    """Return the name of the virtual machine that still needs a retained machine; empty: none does.

    That is one that is to get its disk from it, or the one that it belonged to while that has no newer disk.
    """
    node, retained = entry.parts["node"], entry.value
    own = own_vm(view, retained)
    if own is not None and not own.value.deleting:
        handle = _handle(view, own)
        # The disk of a FAILED machine may be incomplete.
        if handle is None or not has_disk(handle) or handle.state is MachineState.FAILED:
            return own.value.name
    for vm in view.vms.entries.values():
        wanted = to_reinstate(vm.value, _handle(view, vm))
        if wanted is not None and (wanted.node, wanted.name) == (node, retained.name):
            return vm.value.name
    return ""


def own_vm(view: View, retained: Retained) -> Entry[VirtualMachine] | None:
    """Return the virtual machine that a retained one belonged to; None: it was deleted.

    It may have been moved to another project before its machine was tagged with the new one.
    """
    own = view.vms.get(org=retained.org, project=retained.project, vm=retained.vm)
    return own or next((vm for vm in view.vms.entries.values() if vm.parts["vm"] == retained.vm), None)


def is_due(view: View, entry: Entry[Retained], *, retention: float, now: float) -> bool:
    """Return whether it is garbage-collected now: its retention is over, and no virtual machine needs it.

    Only on a reachable node, or if no node has it: an unreachable node would delete it later, when the disk may be
    needed again.
    """
    if view.alive.get(node=entry.parts["node"]) is None and not loss_reason(view, entry):
        return False
    if not entry.value.listed_at or entry.value.kept_since + retention > now:
        return False
    if view.vms.unreadable or view.handles.unreadable:
        return False
    if view.retained_requests.get(node=entry.parts["node"], name=entry.parts["name"]) is not None:
        return False
    return not kept_for(view, entry)


def _handle(view: View, vm: Entry[VirtualMachine]) -> VmHandle | None:
    found = view.handles.get(org=vm.parts["org"], project=vm.parts["project"], vm=vm.parts["vm"])
    return None if found is None else found.value
