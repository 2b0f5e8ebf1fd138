"""Who sends a request: its address behind a proxy, its token, its ticket."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

from hostler.engine.access.token import digest_of
from hostler.engine.request import Caller
from hostler.engine.tickets import worthless
from hostler.entry.server.body import path_parts
from hostler.entry.server.problem import FORBIDDEN, Refusal
from hostler.errors import Invalid, Unauthenticated
from hostler.model.inventory import Rights
from hostler.model.resources.operation import Access

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.entry.server.route import Raw, Route
    from hostler.entry.server.services import Services


FOR, PROTO = b"x-forwarded-for", b"x-forwarded-proto"
HEADERS = (FOR, PROTO, b"forwarded")
"""Headers by which a proxy is recognized, trusted or not."""
HOPS = 32
"""Most proxies in a chain that are followed."""
_LONGEST = 45
"""Most characters of an address."""
_SCHEMES = {
    (b"http", "http"): "http",
    (b"https", "http"): "https",
    (b"http", "websocket"): "ws",
    (b"https", "websocket"): "wss",
}
_Address: TypeAlias = "ipaddress.IPv4Address | ipaddress.IPv6Address"


class Proxies:
    """The trusted proxies: addresses and networks, in the setting `trusted_proxies`.

    Headers are trusted only from them. `X-Forwarded-Proto` says whether the client used https. `X-Forwarded-For` gives
    the client's address: the last one that is not a trusted proxy. Values that cannot be parsed are ignored.
    `Forwarded` is not read.
    """

    def __init__(self, trusted: Sequence[str]) -> None:
        self._networks = tuple(ipaddress.ip_network(each) for each in trusted)

    def believe(self, scope: Any) -> None:
        """Set `client` and `scheme` of an ASGI scope from the headers of a trusted proxy; ignore all others."""
        client = scope.get("client") if self._networks else None
        if not client or not self._trusts(_address(client[0])):
            return
        protos = _header_values(scope, PROTO)
        if protos:  # the last value comes from the nearest proxy
            scope["scheme"] = _SCHEMES.get((protos[-1].lower(), scope["type"]), scope.get("scheme"))
        for text in reversed(_header_values(scope, FOR)[-HOPS:]):
            address = _address(text.decode("latin-1"))
            if address is None:
                return
            scope["client"] = (str(address), 0)
            if not self._trusts(address):
                return

    def trusts(self, source: str) -> bool:
        """Return whether the address is a trusted proxy."""
        return bool(self._networks) and self._trusts(_address(source))

    def _trusts(self, address: _Address | None) -> bool:
        return address is not None and any(address in network for network in self._networks)


def _header_values(scope: Any, header: bytes) -> list[bytes]:
    """Return all values of a header, which may occur several times with several values each."""
    return [
        value.strip()
        for name, text in scope["headers"]
        if name == header
        for value in text.split(b",")
        if value.strip()
    ]


def _address(text: str) -> _Address | None:
    if len(text) > _LONGEST or "%" in text:
        return None
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


MAX_TOKEN = 512


def needs_token(route: Route, headers: dict[bytes, bytes], source: str) -> bool:
    """Return whether a request must be authenticated."""
    if route.access is Access.NEARBY:
        return not is_nearby(source) or any(name in headers for name in HEADERS)
    return route.access is not Access.ANYONE


def is_nearby(source: str) -> bool:
    """Return whether an address is this host's loopback. A local proxy is recognized by the headers that it adds."""
    try:
        address = ipaddress.ip_address(source)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def token_of(headers: dict[bytes, bytes]) -> str:
    """Return the token that was sent. Unauthenticated: there is none."""
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    token = token.strip()
    if scheme.lower() != b"bearer" or not token or len(token) > MAX_TOKEN or not token.isascii():
        raise Unauthenticated("token: missing; send Authorization: Bearer with a token")
    return token.decode()


def caller_of(services: Services, token: str, source: str) -> Caller:
    """Return the caller of a token. Unauthenticated: the token is not valid."""
    return services.users.authenticate(token, source)


async def bearer_of(services: Services, raw: Raw, route: Route, shown: str | None, source: str) -> Caller:
    """Return the caller to whom a ticket was issued, by the token it was issued for. This does not redeem the ticket.

    Unauthenticated: the ticket is not valid for this channel, or its token is no longer valid.
    """
    if shown is None or route.channel is None:
        raise Unauthenticated("token: missing; send Authorization: Bearer with a token, or ?ticket= with a ticket")
    if not await services.tickets.seals.fits(shown):
        services.users.check_guesses(source)
    try:
        raw.ticket = await services.tickets.read(shown, route.channel)
    except Unauthenticated:
        services.users.count_guess(source)
        raise
    return await services.users.meet_holder(raw.ticket.value.token, source)


def shows_ticket(headers: dict[bytes, bytes]) -> bool:
    """Return whether the client is another process of the control plane, which presents a ticket (`entry.relay`)."""
    return headers.get(b"authorization", b"").partition(b" ")[0].lower() == b"ticket"


async def peer_of(services: Services, raw: Raw, route: Route, segments: list[str], source: str) -> Caller:
    """Redeem a ticket for exactly this path, and return the process that presented it.

    Unauthenticated: it is not valid.
    """
    ticket = raw.headers[b"authorization"].partition(b" ")[2].strip().decode("latin-1")
    services.users.check_guesses(source)
    try:
        if services.peer_tickets is None:
            raise worthless()
        subject = path_parts(segments)[-1]
        redeemed = await services.peer_tickets.redeem(ticket, route.peers, subject, route.path.rpartition("/")[2])
    except Unauthenticated:
        services.users.count_guess(source)
        raise
    raw.peer = True
    return Caller(redeemed.by, Rights())


def check_one(shown: str | None) -> None:
    """Check that not both a token and a ticket were sent. Invalid: they may belong to different callers."""
    if shown is not None:
        raise Invalid("ticket: a token was sent too; send only one of them")


def digest_shown(raw: Raw) -> str:
    """Return the SHA-256 of the token that was sent, or that the ticket was issued for."""
    return digest_of(raw.token) if raw.ticket is None else raw.ticket.value.token


def check_origin(headers: dict[bytes, bytes]) -> None:
    """Check the Origin header. Refusal: a browser page of another server made the request. Only browsers send it."""
    origin = headers.get(b"origin")
    if origin is None:
        return
    try:
        place = urlsplit(origin.decode("ascii").lower()).netloc
    except ValueError:
        place = ""
    if not place or place != headers.get(b"host", b"").decode("latin-1").lower():
        said = origin[:80].decode("latin-1")
        raise Refusal(FORBIDDEN, f"origin {said!r}: not this server; open the page from this server")
