"""Checks of disks: which are retained and until when, and which are lost with their node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.engine.controllers.retention import keeps_disk
from hostler.keys.inventory import WORKLOAD
from hostler.keys.node import MEMBER, RETAINED
from hostler.keys.vm import VM
from hostler.kit.plural import counted
from hostler.model.lab import utc_time
from hostler.model.vm import OnNodeLoss
from hostler.ports.finding import Finding, Level

if TYPE_CHECKING:
    from hostler.ports.store import Store
    from hostler.settings import Settings

MOST = 5
"""Names that are listed."""


async def retained(store: Store, settings: Settings) -> list[Finding]:
    """Return the findings of the whole cluster."""
    return [*await _kept(store, settings), *await _old_fences(store)]


async def _kept(store: Store, settings: Settings) -> list[Finding]:
    entries = sorted((await RETAINED.list(store, strict=False)).entries, key=lambda entry: entry.value.retained_at)
    if not entries:
        return []
    named = [
        f"{entry.value.vm_name or entry.value.vm} on {entry.parts['node']}"
        f" until {utc_time(entry.value.kept_since + settings.retention)[:10]}"
        for entry in entries
    ]
    what = f"{counted(len(entries), 'machine')} retained: {few(named)}"
    found = [Finding("retained", Level.WARN, what, "hostler vm retained list; restore what is needed")]
    members = {entry.parts["node"]: entry.value for entry in (await MEMBER.list(store, strict=False)).entries}
    lost = [
        f"{entry.value.vm_name or entry.value.vm} of {entry.parts['node']}"
        for entry in entries
        if not keeps_disk(members.get(entry.parts["node"]), entry.value)
    ]
    if lost:
        what = f"no node has the disks of {few(lost)}: the nodes were removed, or use another data folder"
        advice = (
            "start their agents with the data folders of these disks, or delete the records: hostler vm retained delete"
        )
        found.append(Finding("retained", Level.WARN, what, advice))
    return found


async def _old_fences(store: Store) -> list[Finding]:
    """Report VMs and workloads from before `fence` meant that machines return with their disks."""
    names = [
        f"{entry.value.org}/{entry.value.project}/{entry.value.name}"
        for entry in (await VM.list(store, strict=False)).entries
        if entry.value.on_node_loss is OnNodeLoss.FENCE and entry.value.recreates and not entry.value.instance
    ]
    workloads = [
        f"workload {entry.value.name}"
        for entry in (await WORKLOAD.list(store, strict=False)).entries
        if entry.value.loss is not entry.value.on_node_loss
    ]
    advice = []
    if names:
        advice += ["hostler vm update NAME --on-node-loss fence keeps the disk; --on-node-loss recreate confirms it"]
    if workloads:
        advice += ["apply the workload with on_node_loss: fence, which keeps the disks, or recreate, which confirms it"]
    if not advice:
        return []
    old = few([*names, *workloads])
    what = f"on_node_loss=fence of an earlier release: {old} get new disks when their nodes are lost"
    return [Finding("on_node_loss", Level.WARN, what, "; ".join(advice))]


def few(names: list[str]) -> str:
    """Return the first names, and the number of the others."""
    more = f", and {len(names) - MOST} more" if len(names) > MOST else ""
    return ", ".join(names[:MOST]) + more
