"""Routes of workloads."""

from __future__ import annotations

from hostler.entry.server.response import written
from hostler.entry.server.route import AFTER, LIMIT, STALE, Access, Answer, Asked, Route
from hostler.errors import Invalid
from hostler.model.name import fold
from hostler.model.workload_api import InstancePage, WorkloadApply, WorkloadPage, WorkloadScale, WorkloadView

WORKLOADS = "/v1/workloads"
ONE = WORKLOADS + "/{workload}"
SEEN = "Only workloads whose project the caller sees; others are not found."


async def listed(asked: Asked) -> Answer:
    page = await asked.services.workloads.list(asked.caller, limit=asked.limit, after=asked.after, stale=asked.stale)
    return Answer(page)


async def shown(asked: Asked) -> Answer:
    return Answer(await asked.services.workloads.get(asked.caller, asked.parts["workload"], stale=asked.stale))


async def instances(asked: Asked) -> Answer:
    page = await asked.services.workloads.instances(
        asked.caller, asked.parts["workload"], limit=asked.limit, after=asked.after, stale=asked.stale
    )
    return Answer(page)


async def applied(asked: Asked) -> Answer:
    name, body = asked.parts["workload"], asked.body
    if fold(body.name) != fold(name):
        raise Invalid(f"workload {name}: the body names {body.name}; use the same name in path and body")
    done = await asked.services.workloads.apply(asked.request, body)
    return written(done, location=f"{WORKLOADS}/{name}" if done.status == 201 else None)


async def scaled(asked: Asked) -> Answer:
    return written(await asked.services.workloads.scale(asked.request, asked.parts["workload"], asked.body))


async def deleted(asked: Asked) -> Answer:
    return written(await asked.services.workloads.delete(asked.request, asked.parts["workload"]))


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path=WORKLOADS,
        name="workload.list",
        summary="All workloads that the caller sees, in order of their names",
        handler=listed,
        access=Access.LOGGED_IN,
        answer=WorkloadPage,
        query=(LIMIT, AFTER, STALE),
        about=SEEN,
    ),
    Route(
        method="GET",
        path=ONE,
        name="workload.get",
        summary="A workload and its status",
        handler=shown,
        access=Access.LOGGED_IN,
        answer=WorkloadView,
        query=(STALE,),
        about=SEEN,
    ),
    Route(
        method="GET",
        path=ONE + "/instances",
        name="workload.instances",
        summary="The instances of a workload, in order of their numbers: spec and status",
        handler=instances,
        access=Access.LOGGED_IN,
        answer=InstancePage,
        query=(LIMIT, AFTER, STALE),
        about=SEEN,
    ),
    Route(
        method="PUT",
        path=ONE,
        name="workload.apply",
        summary="Create or change a workload; the same content again changes nothing",
        handler=applied,
        access="modify_workloads",
        also=(201,),
        body=WorkloadApply,
        answer=WorkloadView,
        conditional=True,
        about="201: it is new. A change of spec, affinity or node labels replaces instances, within the"
        " limits of the rollout; other changes apply in place. 409: its name is taken, it is being deleted, or its"
        " machines would have to change their project.",
    ),
    Route(
        method="PATCH",
        path=ONE,
        name="workload.scale",
        summary="Change the number of instances, or start or stop them; omitted fields stay",
        handler=scaled,
        access="modify_workloads",
        body=WorkloadScale,
        answer=WorkloadView,
        conditional=True,
    ),
    Route(
        method="DELETE",
        path=ONE,
        name="workload.delete",
        summary="Delete a workload and its machines; it is gone once it is not found",
        handler=deleted,
        access="modify_workloads",
        status=202,
        answer=WorkloadView,
        conditional=True,
    ),
)
