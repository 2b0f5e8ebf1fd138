"""Routes of accounts, tokens, projects and quotas, and of sessions.

A browser has its session in a cookie: a token that scripts cannot read. It sends the cookie with every request to this
server, also with requests of pages from other servers on this host, because cookies ignore ports. So the cookie alone
does not permit writes. A write needs the header `Hostler-Csrf`, which is derived from the token and known only to our
own page, and if the browser names the origin of the request, it must be this server. WebSockets accept no cookie, only
tickets.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.access.token import digest_of
from hostler.engine.request import Request
from hostler.engine.tickets import WEB
from hostler.entry.server.authentication import check_origin, digest_shown
from hostler.entry.server.problem import CSRF, UNAUTHENTICATED, Refusal
from hostler.entry.server.route import Answer, Asked, Route, routes_of, write_answer
from hostler.errors import HostlerError, Invalid, Unauthenticated
from hostler.model.access_api import BrowserSession, Login, SignIn
from hostler.model.resources.accounts import BrowserSessionApi, OrgQuotaApi, ProjectApi, QuotaApi, UserApi
from hostler.model.resources.operation import NOTHING, Access

if TYPE_CHECKING:
    from hostler.engine.request import Caller
    from hostler.entry.server.route import Raw
    from hostler.entry.server.services import Services
    from hostler.model.access_api import TokenIssued


PATH = "/v1/sessions/browser"
PAGE = "/#/sign-in"
"""The page that takes a ticket from the URL fragment; browsers never send the fragment to a server."""
HEADER = b"hostler-csrf"
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,255})(?::([0-9]{1,5}))?")
_TOKEN = re.compile(rb"[A-Za-z0-9_-]{1,512}")
_READS = ("GET", "HEAD")


def has_cookie(raw: Raw) -> bool:
    """Return whether the request uses a browser session: it has cookies, no Authorization, and is not a stream."""
    return b"cookie" in raw.headers and b"authorization" not in raw.headers and raw.scope["type"] == "http"


async def caller_of_cookie(services: Services, raw: Raw, source: str) -> Caller:
    """Return the caller of the cookie. Unauthenticated: it is not valid. Refusal: another page made the request."""
    token = _token_of(raw)
    if raw.headers.get(b"sec-fetch-site", b"").lower() == b"cross-site":
        raise Refusal(CSRF, "cookie: the request comes from a page of another server; open the page from this server")
    try:
        caller = await services.users.meet(token, source)
    except Unauthenticated as error:
        raise _worthless(raw, str(error)) from None
    if raw.scope["method"] not in _READS:
        _check_ours(raw)
        if not hmac.compare_digest(raw.headers.get(HEADER, b""), csrf_of(token).encode()):
            raise Refusal(
                CSRF,
                "Hostler-Csrf: missing, or does not match the cookie; reload the page, or sign in again",
            )
    raw.token, raw.cookie = token, True
    return caller


def csrf_of(token: str) -> str:
    """Return the CSRF value that our page sends with each write. It does not reveal the token."""
    return hmac.new(token.encode(), b"hostler csrf", hashlib.sha256).hexdigest()


def cookie_deletion(raw: Raw) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers that delete the browser's cookie."""
    name = _name_of(raw)
    return () if name is None else (_cookie(name, "", 0), *_former_cleared(raw))


# Routes


async def signed_in(asked: Asked) -> Answer:
    """Start a session, and put its token in a cookie."""
    raw, users = asked.raw, asked.services.users
    _check_ours(raw)
    name = _name_of(raw)
    if name is None:
        raise Invalid("Host: missing or invalid, so no cookie can be set; send Host: name:port")
    issued = await _begin_session(asked, asked.body)
    await _end_replaced(asked)
    ends_at = issued.expires_at or 0.0
    session = BrowserSession(user=await users.entered(issued), csrf=csrf_of(issued.token), expires_at=ends_at)
    lives = max(1, int(ends_at - asked.services.clock.wall()))
    return Answer(session, headers=(_cookie(name, issued.token, lives), *_former_cleared(raw)))


async def show_session(asked: Asked) -> Answer:
    """Return the session of the cookie; 204 without a cookie, because browsers log every 401 as an error."""
    raw, users = asked.raw, asked.services.users
    if b"authorization" in raw.headers:
        raise _no_session()
    if not _values(raw):
        return Answer(status=NOTHING)
    caller = await caller_of_cookie(asked.services, raw, asked.source)
    ends_at = users.session_end(caller)
    if ends_at is None:
        raise _no_session()
    return Answer(BrowserSession(user=users.whoami(caller), csrf=csrf_of(raw.token), expires_at=ends_at))


async def issue_ticket(asked: Asked) -> Answer:
    """Issue a one-time ticket that signs a browser in."""
    return write_answer(await asked.services.tickets.issue_web(asked.request, digest_shown(asked.raw), PAGE))


# Internal


async def _begin_session(asked: Asked, body: SignIn) -> TokenIssued:
    users, source = asked.services.users, asked.source
    match (body.name, body.password, body.token, body.ticket):
        case (str(name), str(password), None, None):
            asked.raw.tried = name
            return await users.login(Login(name=name, password=password), source)
        case (None, None, str(token), None):
            asked.spend(await users.meet(token, source))
            return await users.enter(digest_of(token), source)
        case (None, None, None, str(ticket)):
            return await _by_ticket(asked, ticket, source)
        case _:
            raise Invalid("sign in: needs a name and a password, or a token, or a ticket; give one of the three")


async def _by_ticket(asked: Asked, shown: str, source: str) -> TokenIssued:
    services = asked.services
    if not await services.tickets.seals.fits(shown):
        services.users.check_guesses(source)
    try:
        entry = await services.tickets.read(shown, WEB)
    except Unauthenticated:
        services.users.count_guess(source)
        raise
    caller = await services.users.meet_holder(entry.value.token, source)
    asked.spend(caller)
    await services.tickets.use(entry, caller)
    return await services.users.enter(entry.value.token, source)


async def _end_replaced(asked: Asked) -> None:
    """End the sessions of the cookies that the browser sent: it is about to lose them."""
    users = asked.services.users
    for name in _names_of(asked.raw):
        with suppress(HostlerError):  # the session is invalid or will expire; the new session already exists
            await users.logout(Request(await users.meet(_token_of(asked.raw, name), asked.source)))


def _no_session() -> Unauthenticated:
    return Unauthenticated("session: not a browser session; sign in with POST /v1/sessions/browser")


def _check_ours(raw: Raw) -> None:
    """Check that our own page made the request. Refusal: the browser names another page."""
    site = raw.headers.get(b"sec-fetch-site", b"same-origin").lower()
    if site != b"same-origin":
        said = site[:40].decode("latin-1")
        raise Refusal(
            CSRF,
            f"Sec-Fetch-Site {said!r}: the request comes from another page; open the page from this server",
        )
    try:
        check_origin(raw.headers)
    except Refusal as error:
        raise Refusal(CSRF, str(error)) from None


def _names_of(raw: Raw) -> tuple[str, ...]:
    """Return the names of this server's cookies; empty if the Host header is missing or invalid.

    Cookies ignore ports, so the name contains the port. The first name is the one in use. Over https there is a second:
    the name from before the server trusted the proxy's headers.
    """
    found = _HOST.fullmatch(raw.headers.get(b"host", b""))
    if found is None:
        return ()
    plain = f"hostler_{int(found[1] or 80)}"
    if raw.scope.get("scheme") != "https":
        return (plain,)
    return (f"__Host-hostler_{int(found[1] or 443)}", plain)


def _name_of(raw: Raw) -> str | None:
    return next(iter(_names_of(raw)), None)


def _token_of(raw: Raw, name: str | None = None) -> str:
    """Return the token in this server's cookie, or in the cookie of that name; duplicates are refused as ambiguous."""
    values = _values(raw, name)
    if not values:
        raise Unauthenticated("token: missing; send Authorization: Bearer with a token, or sign in")
    if len(values) > 1 or not _TOKEN.fullmatch(values[0]):
        raise _worthless(raw, "cookie: not valid; sign in again")
    return values[0].decode()


def _values(raw: Raw, name: str | None = None) -> list[bytes]:
    """Return the values of cookies of that name, or of this server's name."""
    meant = (name or _name_of(raw) or "").encode()
    found: list[bytes] = []
    for header, text in raw.scope["headers"]:  # a browser may send several Cookie headers
        if header == b"cookie":
            pairs = (pair.partition(b"=") for pair in text.split(b";"))
            found += [value.strip() for key, _, value in pairs if key.strip() == meant != b""]
    return found


def _former_cleared(raw: Raw) -> tuple[tuple[bytes, bytes], ...]:
    """Return the header that deletes the cookie from before https, if the browser has one: it is sent over http too."""
    return tuple(_cookie(name, "", 0) for name in _names_of(raw)[1:] if _values(raw, name))


def _cookie(name: str, value: str, lives: int) -> tuple[bytes, bytes]:
    secure = "; Secure" if name.startswith("__Host-") else ""
    return b"set-cookie", f"{name}={value}; Path=/; Max-Age={lives}; HttpOnly; SameSite=Strict{secure}".encode()


def _worthless(raw: Raw, why: str) -> Refusal:
    return Refusal(UNAUTHENTICATED, why, cookie_deletion(raw))


SESSION_ROUTES: tuple[Route, ...] = (
    Route(
        method="POST",
        path=PATH,
        name="session.sign_in",
        summary="Sign a browser in: a session in a cookie, for a password, a token or a ticket",
        handler=signed_in,
        access=Access.ANYONE,
        status=201,
        body=SignIn,
        answer=BrowserSession,
        errors=(401, 403, 429),
        idempotent=False,
        about="Give a name and a password, or a token, or a ticket. The session's token is in the cookie only. A"
        " session whose cookie was sent ends, replaced by the new one. Writes with the cookie need"
        " the header `Hostler-Csrf` with the answer's `csrf`.",
    ),
    Route(
        method="GET",
        path=PATH,
        name="session.browser",
        summary="The session that the browser's cookie holds",
        handler=show_session,
        access=Access.ANYONE,
        also=(NOTHING,),
        answer=BrowserSession,
        errors=(400, 401, 403, 429),
        about="204 without a cookie of this server. 401 for an invalid cookie, which is deleted, and for a"
        " token in a header.",
    ),
    *routes_of(BrowserSessionApi, ticket=issue_ticket),
)


async def login(asked: Asked) -> Answer:
    asked.raw.tried = asked.body.name
    return Answer(await asked.services.users.login(asked.body, asked.source))


async def whoami(asked: Asked) -> Answer:
    return Answer(asked.services.users.whoami(asked.caller))


async def logout(asked: Asked) -> Answer:
    """Revoke the token that was sent; a browser's cookie is deleted too."""
    answer = write_answer(await asked.services.users.logout(asked.request))
    return (
        msgspec.structs.replace(answer, headers=(*answer.headers, *cookie_deletion(asked.raw)))
        if asked.raw.cookie
        else answer
    )


async def set_org_quota(asked: Asked) -> Answer:
    return write_answer(await asked.services.quotas.set(asked.request, asked.parts["org"], "", asked.body))


async def delete_org_quota(asked: Asked) -> Answer:
    return write_answer(await asked.services.quotas.delete(asked.request, asked.parts["org"], ""))


QUOTA_ROUTES = (
    *routes_of(ProjectApi, "vms.projects"),
    *routes_of(OrgQuotaApi, "quotas", set=set_org_quota, delete=delete_org_quota),
    *routes_of(QuotaApi, "quotas"),
)
USER_ROUTES = routes_of(UserApi, "users", login=login, whoami=whoami, logout=logout)
