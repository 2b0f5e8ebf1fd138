"""What a proxy says of who asks: believed of those that the settings name (`trusted_proxies`), and of nobody else.

`X-Forwarded-Proto` says whether the caller came by https; `X-Forwarded-For` from where, the last who is no such proxy.
What cannot be understood counts as not said. `Forwarded` is not read.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

FOR, PROTO = b"x-forwarded-for", b"x-forwarded-proto"
HEADERS = (FOR, PROTO, b"forwarded")
"""By which a proxy can be told, trusted or not."""
HOPS = 32
"""Proxies behind each other that are looked at."""
_LONGEST = 45
"""Characters of an address."""
_SCHEMES = {
    (b"http", "http"): "http",
    (b"https", "http"): "https",
    (b"http", "websocket"): "ws",
    (b"https", "websocket"): "wss",
}
_Address: TypeAlias = "ipaddress.IPv4Address | ipaddress.IPv6Address"


class Proxies:
    """`trusted`: addresses and networks."""

    def __init__(self, trusted: Sequence[str]) -> None:
        self._networks = tuple(ipaddress.ip_network(each) for each in trusted)

    def believe(self, scope: Any) -> None:
        """Make `client` and `scheme` of an ASGI scope what a trusted proxy says; from all others they stay."""
        client = scope.get("client") if self._networks else None
        if not client or not self._trusts(_address(client[0])):
            return
        protos = _said(scope, PROTO)
        if protos:  # the last is what the nearest said
            scope["scheme"] = _SCHEMES.get((protos[-1].lower(), scope["type"]), scope.get("scheme"))
        for text in reversed(_said(scope, FOR)[-HOPS:]):
            address = _address(text.decode("latin-1"))
            if address is None:
                return
            scope["client"] = (str(address), 0)
            if not self._trusts(address):
                return

    def trusts(self, source: str) -> bool:
        """Return whether that address is one of the proxies."""
        return bool(self._networks) and self._trusts(_address(source))

    def _trusts(self, address: _Address | None) -> bool:
        return address is not None and any(address in network for network in self._networks)


def _said(scope: Any, header: bytes) -> list[bytes]:
    """All values of a header, which may come several times, and have several in each."""
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
