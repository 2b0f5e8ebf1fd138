"""The route of everything at a glance."""

from __future__ import annotations

import msgspec

from hostler.entry.server.route import Access, Answer, Asked, Route
from hostler.model.overview_api import Overview


async def overview(asked: Asked) -> Answer:
    """How it all stands."""
    view = await asked.services.overview.get(asked.caller)
    return Answer(msgspec.structs.replace(view, simulation=asked.services.sim is not None))


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path="/v1/overview",
        name="control.overview",
        summary="Everything at a glance: who leads, the store, nodes, machines, labs, deployments, what needs a look",
        about="Machines and labs are counted as far as you see them. It is answered from memory: also while the store"
        " does not answer, and then says so.",
        handler=overview,
        access=Access.LOGGED_IN,
        answer=Overview,
    ),
)
