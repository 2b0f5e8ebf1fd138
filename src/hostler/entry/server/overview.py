"""The route of the overview."""

from __future__ import annotations

import msgspec

from hostler.entry.server.route import Access, Answer, Asked, Route
from hostler.model.overview_api import Overview


async def overview(asked: Asked) -> Answer:
    view = await asked.services.overview.get(asked.caller)
    return Answer(msgspec.structs.replace(view, simulation=asked.services.sim is not None))


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path="/v1/overview",
        name="control.overview",
        summary="Overview: leader, store, nodes, machines, labs, deployments, and what needs attention",
        about="Counts only machines and labs that the caller sees. Answered from memory, also while the store does not"
        " answer; the answer then says so.",
        handler=overview,
        access=Access.LOGGED_IN,
        answer=Overview,
    ),
)
