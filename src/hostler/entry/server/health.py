"""Routes for monitoring and for readers of the API docs: no store access, and no token except for metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.entry.server.docs_page import PAGE, SCRIPT, STYLE
from hostler.entry.server.problem import UNAVAILABLE, Refusal
from hostler.entry.server.route import Answer, Asked, Route
from hostler.entry.server.static_files import GUARDS, hashed, policy
from hostler.model.resources.operation import Access

if TYPE_CHECKING:
    from hostler.entry.server.route import Handler

HTML = b"text/html; charset=utf-8"
_ALLOWED = policy(script=hashed(SCRIPT), style=hashed(STYLE))


async def alive(asked: Asked) -> Answer:  # noqa: ARG001 - every handler takes it
    """Answer if the process runs."""
    return Answer(text=b"ok\n", media=b"text/plain; charset=utf-8")


async def ready(asked: Asked) -> Answer:
    """Answer if the store accepts writes, the cache follows it, and the process was not asked to end."""
    if asked.services.stopping():
        raise Refusal(UNAVAILABLE, "replica: shutting down; ask another one")
    view = asked.services.view
    if not asked.services.was_read():
        raise Refusal(UNAVAILABLE, "view: the store has not been read yet; wait")
    if problem := view.problem():
        raise Refusal(UNAVAILABLE, problem)
    return Answer(text=b"ready\n", media=b"text/plain; charset=utf-8")


async def docs(asked: Asked) -> Answer:  # noqa: ARG001
    return Answer(text=PAGE, media=HTML, headers=(_ALLOWED, *GUARDS))


def routes(openapi: Handler, metrics: Handler, *, open_metrics: bool | None = False) -> tuple[Route, ...]:
    """Return the routes; `openapi` and `metrics` are handlers of the app."""
    text = "text/plain"
    figures = Access.NEARBY if open_metrics is None else Access.ANYONE if open_metrics else Access.LOGGED_IN
    return (
        Route(
            method="GET",
            path="/healthz",
            name="health.alive",
            summary="Liveness: the process runs",
            handler=alive,
            access=Access.ANYONE,
            media=text,
        ),
        Route(
            method="GET",
            path="/readyz",
            name="health.ready",
            summary="Readiness: the store accepts writes, and was read",
            handler=ready,
            access=Access.ANYONE,
            media=text,
        ),
        Route(
            method="GET",
            path="/metrics",
            name="health.metrics",
            summary="Prometheus metrics",
            handler=metrics,
            access=figures,
            media=text,
        ),
        Route(
            method="GET",
            path="/openapi.json",
            name="health.openapi",
            summary="This API as an OpenAPI 3.1 document",
            handler=openapi,
            access=Access.ANYONE,
        ),
        Route(
            method="GET",
            path="/docs",
            name="health.docs",
            summary="This API as an HTML page",
            handler=docs,
            access=Access.ANYONE,
            media="text/html",
        ),
    )
