"""Client address and scheme from proxy headers, trusted only from the proxies in the setting `trusted_proxies`.

`X-Forwarded-Proto` says whether the client used https. `X-Forwarded-For` gives the client's address: the last one that
is not a trusted proxy. Values that cannot be parsed are ignored. `Forwarded` is not read.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    """The trusted proxies: addresses and networks."""

    def __init__(self, trusted: Sequence[str]) -> None:
        self._networks = tuple(ipaddress.ip_network(each) for each in trusted)

    def believe(self, scope: Any) -> None:
        """Set `client` and `scheme` of an ASGI scope from the headers of a trusted proxy; ignore all others."""
        client = scope.get("client") if self._networks else None
        if not client or not self._trusts(_address(client[0])):
            return
        protos = _said(scope, PROTO)
        if protos:  # the last value comes from the nearest proxy
            scope["scheme"] = _SCHEMES.get((protos[-1].lower(), scope["type"]), scope.get("scheme"))
        for text in reversed(_said(scope, FOR)[-HOPS:]):
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


def _said(scope: Any, header: bytes) -> list[bytes]:
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
