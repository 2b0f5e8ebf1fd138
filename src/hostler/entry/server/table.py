"""The table of all routes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.entry.server import (
    artifacts,
    blueprints,
    browser_session,
    control,
    health,
    invoke,
    labs,
    nodes,
    quotas,
    racks,
    retained,
    shell,
    sim,
    terminal,
    traces,
    users,
    vm_websockets,
    vms,
    workloads,
)
from hostler.entry.server.static_files import StaticFiles

if TYPE_CHECKING:
    from hostler.entry.server.route import Handler, Route

API: tuple[Route, ...] = (
    *(
        *vms.ROUTES,
        *vm_websockets.ROUTES,
        *shell.ROUTES,
        *labs.ROUTES,
        *workloads.ROUTES,
        *blueprints.ROUTES,
        *terminal.ROUTES,
        *nodes.ROUTES,
        *racks.ROUTES,
        *retained.ROUTES,
    ),
    *(
        *quotas.ROUTES,
        *users.ROUTES,
        *browser_session.ROUTES,
        *control.ROUTES,
        *traces.ROUTES,
        *sim.ROUTES,
        *invoke.ROUTES,
    ),
    *artifacts.ROUTES,
)
"""All routes below `/v1`."""


def table(
    openapi: Handler, metrics: Handler, *, open_metrics: bool | None = False, site: StaticFiles | None = None
) -> tuple[Route, ...]:
    """Return every route of a server."""
    return (*API, *health.routes(openapi, metrics, open_metrics=open_metrics), *(site or StaticFiles()).routes())
