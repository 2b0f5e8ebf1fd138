"""The table of all routes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.entry.server import (
    accounts,
    artifacts,
    blueprints,
    browser_session,
    control,
    hardware,
    health,
    invoke,
    machines,
    shell,
    sim,
    terminal,
    vm_websockets,
)
from hostler.entry.server.static_files import StaticFiles

if TYPE_CHECKING:
    from hostler.entry.server.route import Handler, Route

API: tuple[Route, ...] = (
    *machines.VM_ROUTES,
    *vm_websockets.ROUTES,
    *shell.ROUTES,
    *machines.LAB_ROUTES,
    *machines.WORKLOAD_ROUTES,
    *blueprints.ROUTES,
    *terminal.ROUTES,
    *hardware.NODE_ROUTES,
    *hardware.INVENTORY_ROUTES,
    *machines.RETAINED_ROUTES,
    *accounts.QUOTA_ROUTES,
    *accounts.USER_ROUTES,
    *browser_session.ROUTES,
    *control.ROUTES,
    *sim.ROUTES,
    *invoke.ROUTES,
    *artifacts.ROUTES,
)
"""All routes below `/v1`."""


def table(
    openapi: Handler, metrics: Handler, *, open_metrics: bool | None = False, site: StaticFiles | None = None
) -> tuple[Route, ...]:
    """Return every route of a server."""
    return (*API, *health.routes(openapi, metrics, open_metrics=open_metrics), *(site or StaticFiles()).routes())
