"""The routes of accounts, tokens and sessions."""

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
    """All within reach."""
    return Answer(
        await asked.services.users.list(asked.caller, limit=asked.limit, after=asked.after, stale=asked.stale)
    )


async def created(asked: Asked) -> Answer:
    """A new one."""
    done = await asked.services.users.create(asked.request, asked.body)
    return written(done, location=f"{USERS}/{done.value.name}")


async def shown(asked: Asked) -> Answer:
    """One."""
    return Answer(await asked.services.users.get(asked.caller, asked.parts["user"], stale=asked.stale))


async def updated(asked: Asked) -> Answer:
    """Changed."""
    return written(await asked.services.users.update(asked.request, asked.parts["user"], asked.body))


async def deleted(asked: Asked) -> Answer:
    """Gone, with its tokens."""
    return written(await asked.services.users.delete(asked.request, asked.parts["user"]))


async def tokens(asked: Asked) -> Answer:
    """Those of one account."""
    return Answer(await asked.services.users.tokens(asked.caller, asked.parts["user"]))


async def issued(asked: Asked) -> Answer:
    """The one time that a token is told."""
    return written(await asked.services.users.issue(asked.request, asked.parts["user"], asked.body or TokenCreate()))


async def revoked(asked: Asked) -> Answer:
    """It counts no more."""
    return written(await asked.services.users.revoke(asked.request, asked.parts["user"], asked.parts["token"]))


async def logged_in(asked: Asked) -> Answer:
    """A session for a password."""
    asked.raw.tried = asked.body.name
    return Answer(await asked.services.users.login(asked.body, asked.source))


async def who(asked: Asked) -> Answer:
    """The caller."""
    return Answer(asked.services.users.whoami(asked.caller))


async def logged_out(asked: Asked) -> Answer:
    """The token that was sent counts no more, and a browser forgets it."""
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
        summary="Log out: the token that is sent counts no more",
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
        summary="Make an account",
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
        summary="Change an account; what is left out stays",
        handler=updated,
        access=Access.SELF,
        body=UserUpdate,
        answer=UserView,
        conditional=True,
        about="Without the right manage_accounts: one's own full name and password. A new password of one's own account"
        " needs the present one, `old_password`.",
    ),
    Route(
        method="DELETE",
        path=ONE,
        name="user.delete",
        summary="Delete an account, and its tokens with it",
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
        summary="Issue an API token; it is told this once",
        handler=issued,
        access=Access.SELF,
        status=201,
        body=TokenCreate,
        body_optional=True,
        answer=TokenIssued,
        about="A repeated Idempotency-Key is a conflict: the token is told once.",
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
