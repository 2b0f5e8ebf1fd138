"""Routes of projects and quotas."""

from __future__ import annotations

from hostler.entry.server.response import written
from hostler.entry.server.route import Access, Answer, Asked, Parameter, Route
from hostler.entry.server.vms import PROJECT
from hostler.model.api import ProjectCreate, ProjectList, ProjectView, QuotaSet, QuotaView

QUOTA = PROJECT + "/quota"
ORG_QUOTA = "/v1/orgs/{org}/quota"
_INHERITED = "The limits of an org apply to all of its projects together."


async def projects(asked: Asked) -> Answer:
    return Answer(await asked.services.vms.projects.list(asked.caller, asked.query["org"]))


async def project_created(asked: Asked) -> Answer:
    return written(await asked.services.vms.projects.create(asked.request, asked.parts["org"], asked.body))


async def shown(asked: Asked) -> Answer:
    return Answer(await asked.services.quotas.get(asked.caller, *_bound(asked)))


async def put(asked: Asked) -> Answer:
    return written(await asked.services.quotas.set(asked.request, *_bound(asked), asked.body))


async def deleted(asked: Asked) -> Answer:
    return written(await asked.services.quotas.delete(asked.request, *_bound(asked)))


def _bound(asked: Asked) -> tuple[str, str]:
    return asked.parts["org"], asked.parts.get("project", "")


ROUTES: tuple[Route, ...] = (
    Route(
        method="GET",
        path="/v1/projects",
        name="project.list",
        summary="Projects",
        handler=projects,
        access=Access.LOGGED_IN,
        answer=ProjectList,
        query=(Parameter("org", "Only of this org."),),
    ),
    Route(
        method="POST",
        path="/v1/orgs/{org}/projects",
        name="project.create",
        summary="Create a project",
        handler=project_created,
        access="manage_accounts",
        status=201,
        body=ProjectCreate,
        answer=ProjectView,
        about="For members of the org. Creating an object in a new project also creates the project.",
    ),
    Route(
        method="GET",
        path=ORG_QUOTA,
        name="quota.get_org",
        summary="Quota and usage of an org",
        handler=shown,
        access=Access.LOGGED_IN,
        answer=QuotaView,
        about=_INHERITED + " For members of the org.",
    ),
    Route(
        method="PUT",
        path=ORG_QUOTA,
        name="quota.set_org",
        summary="Set the quota of an org",
        handler=put,
        access=Access.ADMINISTRATORS,
        also=(201,),
        body=QuotaSet,
        answer=QuotaView,
        conditional=True,
        about=_INHERITED,
    ),
    Route(
        method="DELETE",
        path=ORG_QUOTA,
        name="quota.delete_org",
        summary="Delete the quota of an org",
        handler=deleted,
        access=Access.ADMINISTRATORS,
        answer=QuotaView,
        conditional=True,
    ),
    Route(
        method="GET",
        path=QUOTA,
        name="quota.get",
        summary="Quota and usage of a project",
        handler=shown,
        access=Access.PROJECT,
        answer=QuotaView,
    ),
    Route(
        method="PUT",
        path=QUOTA,
        name="quota.set",
        summary="Set the quota of a project",
        handler=put,
        access=Access.ADMINISTRATORS,
        also=(201,),
        body=QuotaSet,
        answer=QuotaView,
        conditional=True,
    ),
    Route(
        method="DELETE",
        path=QUOTA,
        name="quota.delete",
        summary="Delete the quota of a project",
        handler=deleted,
        access=Access.ADMINISTRATORS,
        answer=QuotaView,
        conditional=True,
    ),
)
