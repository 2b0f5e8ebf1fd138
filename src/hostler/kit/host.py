"""Classification of host names."""

from __future__ import annotations

import ipaddress

WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what "every address" means to a local caller


def is_loopback(host: str) -> bool:
    """Return whether data sent there stays on this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
