"""The routes of quotas."""

from __future__ import annotations

from hostler.entry.server.answer import written
from hostler.entry.server.route import Access, Answer, Asked, Route
from hostler.entry.server.vms import PROJECT
from hostler.model.api import QuotaSet, QuotaView

QUOTA = PROJECT + "/quota"


async def shown(asked: Asked) -> Answer:
    """Limits and use."""
    return Answer(await asked.services.quotas.get(asked.caller, asked.parts["org"], asked.parts["project"]))


async def put(asked: Asked) -> Answer:
    """New limits."""
    parts = asked.parts
    return written(await asked.services.quotas.set(asked.request, parts["org"], parts["project"], asked.body))


async def deleted(asked: Asked) -> Answer:
    """No limits."""
    parts = asked.parts
    return written(await asked.services.quotas.delete(asked.request, parts["org"], parts["project"]))


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path=QUOTA,
        name="quota.get",
        summary="What a project may have, and has",
        handler=shown,
        access=Access.PROJECT,
        answer=QuotaView,
    ),
    Route(
        method="PUT",
        path=QUOTA,
        name="quota.set",
        summary="Limit what a project may have",
        handler=put,
        access="manage_accounts",
        also=(201,),
        body=QuotaSet,
        answer=QuotaView,
        conditional=True,
    ),
    Route(
        method="DELETE",
        path=QUOTA,
        name="quota.delete",
        summary="Take the limits away",
        handler=deleted,
        access="manage_accounts",
        answer=QuotaView,
        conditional=True,
    ),
)
