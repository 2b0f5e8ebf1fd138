"""Routes of retained machines."""

from __future__ import annotations

from hostler.entry.server.response import written
from hostler.entry.server.route import Access, Answer, Asked, Route
from hostler.model.api import VmView
from hostler.model.retained_api import RetainedPage, RetainedRestore, RetainedView

RETAINED = "/v1/retained"
ONE = RETAINED + "/{node}/{name}"


async def listed(asked: Asked) -> Answer:
    return Answer(await asked.services.retained.list(asked.caller))


async def shown(asked: Asked) -> Answer:
    return Answer(await asked.services.retained.get(asked.caller, asked.parts["node"], asked.parts["name"]))


async def restored(asked: Asked) -> Answer:
    body = asked.body or RetainedRestore()
    parts = asked.parts
    return written(await asked.services.retained.restore(asked.request, parts["node"], parts["name"], body))


async def deleted(asked: Asked) -> Answer:
    return written(await asked.services.retained.delete(asked.request, asked.parts["node"], asked.parts["name"]))


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path=RETAINED,
        name="retained.list",
        summary="Retained machines: out of service, kept with their disks",
        handler=listed,
        access=Access.LOGGED_IN,
        answer=RetainedPage,
    ),
    Route(
        method="GET",
        path=ONE,
        name="retained.get",
        summary="A retained machine",
        handler=shown,
        access=Access.LOGGED_IN,
        answer=RetainedView,
    ),
    Route(
        method="POST",
        path=f"{ONE}/restore",
        name="retained.restore",
        summary="Restore a virtual machine with its retained disk, or create a new one from it",
        handler=restored,
        access="modify_workloads",
        body=RetainedRestore,
        body_optional=True,
        answer=VmView,
        status=201,
        also=(202,),
    ),
    Route(
        method="DELETE",
        path=ONE,
        name="retained.delete",
        summary="Delete a retained machine with its disk and snapshots, for good",
        handler=deleted,
        access="manage_accounts",
        answer=RetainedView,
        status=202,
    ),
)
