"""Who asks: the token in `Authorization: Bearer`, and nowhere else."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from hostler.entry.server.route import Access
from hostler.errors import Unauthenticated

if TYPE_CHECKING:
    from hostler.engine.request import Caller
    from hostler.entry.server.route import Route
    from hostler.entry.server.services import Services

MAX_TOKEN = 512


def needs_token(route: Route, headers: dict[bytes, bytes], source: str) -> bool:
    """Whether a request has to say who asks."""
    if route.access is Access.NEARBY:
        return not is_nearby(source) or b"x-forwarded-for" in headers or b"forwarded" in headers
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
