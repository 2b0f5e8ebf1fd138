"""Workloads in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.entry.cli.wait import settled

if TYPE_CHECKING:
    from hostler.client import Client
    from hostler.model.workload_api import WorkloadView


def ready_of(view: WorkloadView) -> str:
    """How many of how many are ready."""
    return f"{view.ready}/{view.instances}"


def described(view: WorkloadView) -> str:
    """Where it is, in a few words."""
    detail = f": {view.detail}" if view.detail else ""
    more = [f"{number} {what}" for number, what in ((view.pending, "pending"), (view.leaving, "leaving")) if number]
    return f"{view.phase.value}, {ready_of(view)} ready{''.join(f', {part}' for part in more)}{detail}"


async def until(client: Client, name: str, *, gone: bool, within: float) -> WorkloadView | None:
    """Until all is as wished, or it is gone (None), told on the way. NotYet: not in time, or somebody deleted it."""
    return await settled("workload", name, client.workloads.wait, described, gone=gone, within=within)
