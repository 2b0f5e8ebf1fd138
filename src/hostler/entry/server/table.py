"""The table of all routes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.entry.server import (
    accounts,
    control,
    deployments,
    hardware,
    invoke,
    machines,
    monitoring,
    terminal,
    vm_channels,
)
from hostler.entry.server.static_files import StaticFiles

if TYPE_CHECKING:
    from hostler.entry.server.route import Handler, Route

API: tuple[Route, ...] = (
    *machines.VM_ROUTES,
    *vm_channels.VM_CHANNEL_ROUTES,
    *vm_channels.SHELL_ROUTES,
    *machines.LAB_ROUTES,
    *machines.WORKLOAD_ROUTES,
    *deployments.BLUEPRINT_ROUTES,
    *terminal.ROUTES,
    *hardware.NODE_ROUTES,
    *hardware.INVENTORY_ROUTES,
    *machines.RETAINED_ROUTES,
    *accounts.QUOTA_ROUTES,
    *accounts.USER_ROUTES,
    *accounts.SESSION_ROUTES,
    *control.ROUTES,
    *control.SIM_ROUTES,
    *invoke.ROUTES,
    *deployments.ARTIFACT_ROUTES,
)
"""All routes below `/v1`."""


def table(
    openapi: Handler, metrics: Handler, *, open_metrics: bool | None = False, site: StaticFiles | None = None
) -> tuple[Route, ...]:
    """Return every route of a server."""
    return (*API, *monitoring.routes(openapi, metrics, open_metrics=open_metrics), *(site or StaticFiles()).routes())
