"""Text for workloads, and waiting for a workload."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.entry.cli.wait import settled

if TYPE_CHECKING:
    from hostler.client import Client
    from hostler.model.workload_api import WorkloadView


def ready_of(view: WorkloadView) -> str:
    """Format ready instances of all instances."""
    return f"{view.ready}/{view.instances}"


def described(view: WorkloadView) -> str:
    """Describe the state of the workload in a few words."""
    detail = f": {view.detail}" if view.detail else ""
    more = [f"{number} {what}" for number, what in ((view.pending, "pending"), (view.leaving, "leaving")) if number]
    return f"{view.phase.value}, {ready_of(view)} ready{''.join(f', {part}' for part in more)}{detail}"


async def until(client: Client, name: str, *, gone: bool, within: float) -> WorkloadView | None:
    """Wait until the workload matches its spec, or until it is gone (None). NotYet: not in time, or deleted."""
    return await settled("workload", name, client.workloads.wait, described, gone=gone, within=within)
