"""Who asks: the token in `Authorization: Bearer`; at the door of a machine also a ticket.

A browser has its token in a cookie (`entry.server.browser`).
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from hostler.engine.access.token import digest_of
from hostler.engine.request import Caller
from hostler.engine.tickets import worthless
from hostler.entry.server.body import path_parts
from hostler.entry.server.problem import FORBIDDEN, Refusal
from hostler.entry.server.proxy import HEADERS
from hostler.entry.server.route import Access
from hostler.errors import Invalid, Unauthenticated
from hostler.model.inventory import Rights

if TYPE_CHECKING:
    from hostler.entry.server.route import Raw, Route
    from hostler.entry.server.services import Services

MAX_TOKEN = 512


def needs_token(route: Route, headers: dict[bytes, bytes], source: str) -> bool:
    """Whether a request has to say who asks."""
    if route.access is Access.NEARBY:
        return not is_nearby(source) or any(name in headers for name in HEADERS)
    return route.access is not Access.ANYONE


def is_nearby(source: str) -> bool:
    """Whether an address is this very machine's loopback. A proxy there is told by the headers that it adds."""
    try:
        address = ipaddress.ip_address(source)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def token_of(headers: dict[bytes, bytes]) -> str:
    """The token that was sent. Unauthenticated: none was."""
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    token = token.strip()
    if scheme.lower() != b"bearer" or not token or len(token) > MAX_TOKEN or not token.isascii():
        raise Unauthenticated("token: none was sent; send Authorization: Bearer with a token")
    return token.decode()


def caller_of(services: Services, token: str, source: str) -> Caller:
    """The caller that the token stands for. Unauthenticated: it stands for nobody."""
    return services.users.authenticate(token, source)


async def bearer_of(services: Services, raw: Raw, route: Route, shown: str | None, source: str) -> Caller:
    """Who a ticket was issued to: the one of the token that it was issued for. It is not used up by this.

    Unauthenticated: it counts for nothing at this door, or the token does no longer.
    """
    if shown is None or route.door is None:
        raise Unauthenticated(
            "token: none was sent; send Authorization: Bearer with a token, or ?ticket= with a ticket"
        )
    if not await services.tickets.seals.fits(shown):
        services.users.check_guesses(source)
    try:
        raw.ticket = await services.tickets.read(shown, route.door)
    except Unauthenticated:
        services.users.guessed(source)
        raise
    return await services.users.meet_holder(raw.ticket.value.token, source)


def shows_ticket(headers: dict[bytes, bytes]) -> bool:
    """Whether another process of the control plane asks, as agents ask each other (`entry.peers`)."""
    return headers.get(b"authorization", b"").partition(b" ")[0].lower() == b"ticket"


async def peer_of(services: Services, raw: Raw, route: Route, segments: list[str], source: str) -> Caller:
    """The process that shows a ticket for this very path, which is used up by this. Unauthenticated: it is none."""
    ticket = raw.headers[b"authorization"].partition(b" ")[2].strip().decode("latin-1")
    services.users.check_guesses(source)
    try:
        if services.peer_tickets is None:
            raise worthless()
        subject = path_parts(segments)[-1]
        redeemed = await services.peer_tickets.redeem(ticket, route.peers, subject, route.path.rpartition("/")[2])
    except Unauthenticated:
        services.users.guessed(source)
        raise
    raw.peer = True
    return Caller(redeemed.by, Rights())


def check_one(shown: str | None) -> None:
    """Invalid: a ticket came beside a token, and one of them may be somebody else's."""
    if shown is not None:
        raise Invalid("ticket: a token was sent as well; send the one or the other")


def digest_shown(raw: Raw) -> str:
    """The SHA-256 of the token that was shown, or that the ticket stands on."""
    return digest_of(raw.token) if raw.ticket is None else raw.ticket.value.token


def check_origin(headers: dict[bytes, bytes]) -> None:
    """Refusal: a browser shows a page of another server, and that page wants in. No other program sends an Origin."""
    origin = headers.get(b"origin")
    if origin is None:
        return
    try:
        place = urlsplit(origin.decode("ascii").lower()).netloc
    except ValueError:
        place = ""
    if not place or place != headers.get(b"host", b"").decode("latin-1").lower():
        said = origin[:80].decode("latin-1")
        raise Refusal(FORBIDDEN, f"origin {said!r}: it is not this server's; open the page from this server")
