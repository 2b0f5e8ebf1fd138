"""The address under which a peer is counted."""

from __future__ import annotations

import functools
import ipaddress


@functools.lru_cache(maxsize=4096)
def origin(source: str) -> str:
    """Return the origin of a request for counting: a /64 for IPv6, because one subscriber has a whole /64."""
    try:
        address = ipaddress.ip_address(source.strip("[]"))
    except ValueError:
        return source[:255]
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
