"""Accounts, their tokens and sessions, projects and quotas."""

from __future__ import annotations

from hostler.model.access_api import (
    Login,
    ProjectCreate,
    ProjectList,
    ProjectView,
    QuotaSet,
    QuotaView,
    TokenCreate,
    TokenIssued,
    TokenPage,
    TokenView,
    UserCreate,
    UserPage,
    UserUpdate,
    UserView,
)
from hostler.model.resources.operation import Access, Kind, Operation, Parameter, reads, writes
from hostler.model.vm_api import TicketView

_ORG_QUOTA = "/v1/orgs/{org}/quota"
_QUOTA = "/v1/orgs/{org}/projects/{project}/quota"
_INHERITED = "The limits of an org apply to all of its projects together."


class UserApi:
    """Sessions, accounts and tokens."""

    _user = Kind(
        name="user", path="/v1/users", view=UserView, page=UserPage, readers=Access.SELF, writers="manage_accounts"
    )

    login = writes(
        "POST /v1/sessions",
        "session.login",
        "Log in: a token for a name and a password",
        TokenIssued,
        Access.ANYONE,
        status=201,
        body=Login,
        errors=(401, 429),
        idempotent=False,
    )
    whoami = reads("session.get", "/v1/sessions", "Who the caller is", UserView)
    logout = writes(
        "DELETE /v1/sessions",
        "session.logout",
        "Log out: revoke the token that is sent",
        TokenView,
        Access.LOGGED_IN,
    )
    list = _user.list("All accounts", access="manage_accounts")
    create = _user.create("Create an account", UserCreate)
    get = _user.get("An account")
    update = _user.update(
        "Change an account; omitted fields stay",
        UserUpdate,
        access=Access.SELF,
        about="Without the right manage_accounts: only the caller's own full name and password. A new password of one's"
        " own account needs the current one, `old_password`.",
    )
    delete = _user.delete("Delete an account and its tokens")
    tokens = _user.look("tokens", "The tokens of an account, without their secrets", TokenPage, name="token.list")
    issue = writes(
        f"POST {_user.one}/tokens",
        "token.issue",
        "Issue an API token; it is shown only once",
        TokenIssued,
        Access.SELF,
        status=201,
        body=TokenCreate,
        body_optional=True,
        about="A repeated Idempotency-Key is a conflict, because the token is shown only once.",
    )
    revoke = writes(
        f"DELETE {_user.one}/tokens/{{token}}",
        "token.revoke",
        "Revoke a token, by its id",
        TokenView,
        Access.SELF,
    )


class BrowserSessionApi:
    """Sessions of browsers that programs open for them."""

    ticket = writes(
        "POST /v1/sessions/tickets",
        "session.ticket",
        "Issue a ticket that signs a browser in as the caller, once, within 60 s",
        TicketView,
        Access.LOGGED_IN,
        status=201,
        idempotent=False,
        about="The session ends no later than the token that the ticket was requested with.",
    )


class ProjectApi:
    """Projects of orgs."""

    list = reads(
        "project.list",
        "/v1/projects",
        "Projects",
        ProjectList,
        query=(Parameter("org", "Only of this org."),),
    )
    create = writes(
        "POST /v1/orgs/{org}/projects",
        "project.create",
        "Create a project",
        ProjectView,
        "manage_accounts",
        status=201,
        body=ProjectCreate,
        about="For members of the org. Creating an object in a new project also creates the project.",
    )


def _set_quota(path: str, suffix: str, of: str, about: str = "") -> Operation[QuotaView]:
    return writes(
        f"PUT {path}",
        f"quota.set{suffix}",
        f"Set the quota of {of}",
        QuotaView,
        Access.ADMINISTRATORS,
        also=(201,),
        body=QuotaSet,
        conditional=True,
        about=about,
    )


def _delete_quota(path: str, suffix: str, of: str) -> Operation[QuotaView]:
    summary = f"Delete the quota of {of}"
    return writes(
        f"DELETE {path}", f"quota.delete{suffix}", summary, QuotaView, Access.ADMINISTRATORS, conditional=True
    )


class OrgQuotaApi:
    """The quota for all projects of an org together."""

    get = reads(
        "quota.get_org",
        _ORG_QUOTA,
        "Quota and usage of an org",
        QuotaView,
        about=f"{_INHERITED} For members of the org.",
    )
    set = _set_quota(_ORG_QUOTA, "_org", "an org", _INHERITED)
    delete = _delete_quota(_ORG_QUOTA, "_org", "an org")


class QuotaApi:
    """The quota of a project."""

    get = reads("quota.get", _QUOTA, "Quota and usage of a project", QuotaView, access=Access.PROJECT)
    set = _set_quota(_QUOTA, "", "a project")
    delete = _delete_quota(_QUOTA, "", "a project")
