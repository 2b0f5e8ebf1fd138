"""Routes of accounts, tokens, sessions, projects and quotas."""

from __future__ import annotations

import msgspec

from hostler.entry.server.browser_session import cleared
from hostler.entry.server.route import Answer, Asked, routes_of, written
from hostler.model.resources.accounts import OrgQuotaApi, ProjectApi, QuotaApi, UserApi


async def login(asked: Asked) -> Answer:
    asked.raw.tried = asked.body.name
    return Answer(await asked.services.users.login(asked.body, asked.source))


async def whoami(asked: Asked) -> Answer:
    return Answer(asked.services.users.whoami(asked.caller))


async def logout(asked: Asked) -> Answer:
    """Revoke the token that was sent; a browser's cookie is deleted too."""
    answer = written(await asked.services.users.logout(asked.request))
    return (
        msgspec.structs.replace(answer, headers=(*answer.headers, *cleared(asked.raw))) if asked.raw.cookie else answer
    )


async def set_org_quota(asked: Asked) -> Answer:
    return written(await asked.services.quotas.set(asked.request, asked.parts["org"], "", asked.body))


async def delete_org_quota(asked: Asked) -> Answer:
    return written(await asked.services.quotas.delete(asked.request, asked.parts["org"], ""))


QUOTA_ROUTES = (
    *routes_of(ProjectApi, "vms.projects"),
    *routes_of(OrgQuotaApi, "quotas", set=set_org_quota, delete=delete_org_quota),
    *routes_of(QuotaApi, "quotas"),
)
USER_ROUTES = routes_of(UserApi, "users", login=login, whoami=whoami, logout=logout)
