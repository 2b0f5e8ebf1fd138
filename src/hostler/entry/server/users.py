"""Routes of accounts, tokens and sessions."""

from __future__ import annotations

import msgspec

from hostler.entry.server.browser_session import cleared
from hostler.entry.server.response import written
from hostler.entry.server.route import AFTER, LIMIT, STALE, Access, Answer, Asked, Route
from hostler.model.api import (
    Login,
    TokenCreate,
    TokenIssued,
    TokenPage,
    TokenView,
    UserCreate,
    UserPage,
    UserUpdate,
    UserView,
)

USERS = "/v1/users"
ONE = USERS + "/{user}"
TOKENS = ONE + "/tokens"
SESSIONS = "/v1/sessions"


async def listed(asked: Asked) -> Answer:
    return Answer(
        await asked.services.users.list(asked.caller, limit=asked.limit, after=asked.after, stale=asked.stale)
    )


async def created(asked: Asked) -> Answer:
    done = await asked.services.users.create(asked.request, asked.body)
    return written(done, location=f"{USERS}/{done.value.name}")


async def shown(asked: Asked) -> Answer:
    return Answer(await asked.services.users.get(asked.caller, asked.parts["user"], stale=asked.stale))


async def updated(asked: Asked) -> Answer:
    return written(await asked.services.users.update(asked.request, asked.parts["user"], asked.body))


async def deleted(asked: Asked) -> Answer:
    return written(await asked.services.users.delete(asked.request, asked.parts["user"]))


async def tokens(asked: Asked) -> Answer:
    return Answer(await asked.services.users.tokens(asked.caller, asked.parts["user"]))


async def issued(asked: Asked) -> Answer:
    return written(await asked.services.users.issue(asked.request, asked.parts["user"], asked.body or TokenCreate()))


async def revoked(asked: Asked) -> Answer:
    return written(await asked.services.users.revoke(asked.request, asked.parts["user"], asked.parts["token"]))


async def logged_in(asked: Asked) -> Answer:
    asked.raw.tried = asked.body.name
    return Answer(await asked.services.users.login(asked.body, asked.source))


async def who(asked: Asked) -> Answer:
    return Answer(asked.services.users.whoami(asked.caller))


async def logged_out(asked: Asked) -> Answer:
    """Revoke the token that was sent; a browser's cookie is deleted too."""
    answer = written(await asked.services.users.logout(asked.request))
    return (
        msgspec.structs.replace(answer, headers=(*answer.headers, *cleared(asked.raw))) if asked.raw.cookie else answer
    )


ROUTES: tuple[Route, ...] = (
    Route(
        method="POST",
        path=SESSIONS,
        name="session.login",
        summary="Log in: a token for a name and a password",
        handler=logged_in,
        access=Access.ANYONE,
        status=201,
        body=Login,
        answer=TokenIssued,
        errors=(401, 429),
        idempotent=False,
    ),
    Route(
        method="GET",
        path=SESSIONS,
        name="session.get",
        summary="Who the caller is",
        handler=who,
        access=Access.LOGGED_IN,
        answer=UserView,
    ),
    Route(
        method="DELETE",
        path=SESSIONS,
        name="session.logout",
        summary="Log out: revoke the token that is sent",
        handler=logged_out,
        access=Access.LOGGED_IN,
        answer=TokenView,
    ),
    Route(
        method="GET",
        path=USERS,
        name="user.list",
        summary="All accounts",
        handler=listed,
        access="manage_accounts",
        answer=UserPage,
        query=(LIMIT, AFTER, STALE),
    ),
    Route(
        method="POST",
        path=USERS,
        name="user.create",
        summary="Create an account",
        handler=created,
        access="manage_accounts",
        status=201,
        body=UserCreate,
        answer=UserView,
    ),
    Route(
        method="GET",
        path=ONE,
        name="user.get",
        summary="An account",
        handler=shown,
        access=Access.SELF,
        answer=UserView,
        query=(STALE,),
    ),
    Route(
        method="PATCH",
        path=ONE,
        name="user.update",
        summary="Change an account; omitted fields stay",
        handler=updated,
        access=Access.SELF,
        body=UserUpdate,
        answer=UserView,
        conditional=True,
        about="Without the right manage_accounts: only the caller's own full name and password. A new password of one's"
        " own account needs the current one, `old_password`.",
    ),
    Route(
        method="DELETE",
        path=ONE,
        name="user.delete",
        summary="Delete an account and its tokens",
        handler=deleted,
        access="manage_accounts",
        answer=UserView,
        conditional=True,
    ),
    Route(
        method="GET",
        path=TOKENS,
        name="token.list",
        summary="The tokens of an account, without their secrets",
        handler=tokens,
        access=Access.SELF,
        answer=TokenPage,
    ),
    Route(
        method="POST",
        path=TOKENS,
        name="token.issue",
        summary="Issue an API token; it is shown only once",
        handler=issued,
        access=Access.SELF,
        status=201,
        body=TokenCreate,
        body_optional=True,
        answer=TokenIssued,
        about="A repeated Idempotency-Key is a conflict, because the token is shown only once.",
    ),
    Route(
        method="DELETE",
        path=TOKENS + "/{token}",
        name="token.revoke",
        summary="Revoke a token, by its id",
        handler=revoked,
        access=Access.SELF,
        answer=TokenView,
    ),
)
