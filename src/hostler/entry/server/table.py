"""The one table of routes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.entry.server import control, doors, health, labs, nodes, quotas, terminal, users, vms

if TYPE_CHECKING:
    from hostler.entry.server.route import Handler, Route

API: tuple[Route, ...] = (
    *(*vms.ROUTES, *doors.ROUTES, *labs.ROUTES, *terminal.ROUTES, *nodes.ROUTES),
    *(*quotas.ROUTES, *users.ROUTES, *control.ROUTES),
)
"""Everything under `/v1`."""


def table(openapi: Handler, metrics: Handler, *, open_metrics: bool | None = False) -> tuple[Route, ...]:
    """Every route of a server."""
    return (*API, *health.routes(openapi, metrics, open_metrics=open_metrics))
