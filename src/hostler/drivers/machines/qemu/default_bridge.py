"""Hostler's own bridge, for guests that shall be reached by an IPv6 address without anybody preparing anything.

Its prefix is drawn once for a data folder and kept there (`bridge6`): a unique local one (RFC 4193), whose random part
is in the bridge's MAC, too. By that MAC, which it has from its first instant on, a bridge is known to be this folder's:
another control plane on the same host makes one of another name. It is left standing, for guests outlive who made it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import socket
from contextlib import suppress
from ipaddress import IPv6Network
from pathlib import Path

from hostler.drivers.machines.qemu import rtnetlink
from hostler.drivers.machines.qemu.privileges import NET_ADMIN, has_capabilities
from hostler.errors import Damaged, Refused, Unavailable

USUAL = "hostler0"
FILE = "bridge6"


class OwnBridge:
    """Of the data folder `data`; `prefix`: the one that its guests are in, if not that of the folder."""

    def __init__(self, data: Path, prefix: IPv6Network | None = None) -> None:
        self._data, self._prefix = data, prefix

    def make(self) -> tuple[str, IPv6Network]:
        """Have it stand, with its address, and up; its name and its guests' prefix. Repeatable.

        Refused: it cannot be here.
        """
        if not has_capabilities(NET_ADMIN):
            raise Refused(
                "network bridge: a bridge takes CAP_NET_ADMIN, which this process has not; run it as root or with that"
                " capability"
            )
        own = kept_prefix(self._data)
        mac = mac_of(own)
        try:
            name = self._stands(own, mac) or self._new(own, mac)
            prefix = self._prefix or own
            self._ready(name, prefix)
        except OSError as error:
            raise Refused(
                f"network bridge: this host does not let us make a bridge: {error.strerror}; make one yourself and"
                " name it: network = bridge:NAME"
            ) from None
        return name, prefix

    def _stands(self, own: IPv6Network, mac: str) -> str | None:
        return next((name for name in names(own) if _mac_here(name) == mac), None)

    def _new(self, own: IPv6Network, mac: str) -> str:
        for name in names(own):
            with suppress(FileExistsError):
                rtnetlink.make_bridge(name, mac)
                return name
            if _mac_here(name) == mac:  # another process of this folder was faster
                return name
        raise Refused(f"network bridge: {' and '.join(names(own))} are somebody else's; name a bridge: bridge:NAME")

    def _ready(self, name: str, prefix: IPv6Network) -> None:
        for setting in ("disable_ipv6", "accept_dad"):
            with suppress(OSError):  # what cannot be set may be right, and our address is not waited for anyway
                Path(f"/proc/sys/net/ipv6/conf/{name}/{setting}").write_text("0", encoding="ascii")
        index = socket.if_nametoindex(name)
        rtnetlink.set_up(index)
        with suppress(FileExistsError):
            rtnetlink.add_address(index, prefix[1], prefix.prefixlen)


def names(own: IPv6Network) -> tuple[str, str]:
    """What the bridge of a folder with that prefix may be called: the second, if the first is another's."""
    return USUAL, "hs" + hashlib.sha256(str(own).encode()).hexdigest()[:8]


def mac_of(own: IPv6Network) -> str:
    """A locally administered address of the prefix's 40 random bits."""
    return "02:" + ":".join(f"{byte:02x}" for byte in own.network_address.packed[1:6])


def new_prefix() -> IPv6Network:
    """The first of 65536 in a site of its own (RFC 4193)."""
    return IPv6Network((b"\xfd" + secrets.token_bytes(5) + bytes(10), 64))


def kept_prefix(data: Path) -> IPv6Network:
    """Of the data folder; drawn if there is none. Unavailable: it cannot be kept. Damaged: it is no prefix."""
    file = data / FILE
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "r+", encoding="ascii", errors="replace") as kept:
            fcntl.flock(kept, fcntl.LOCK_EX)
            text = kept.read().strip()
            if not text:
                text = str(new_prefix())
                kept.write(f"{text}\n")
                kept.flush()
                os.fsync(kept.fileno())
    except OSError as error:
        raise Unavailable(f"{file}: the bridge's prefix cannot be kept: {error.strerror}; see to it") from None
    try:
        found = IPv6Network(text)
    except ValueError:
        found = None
    if found is None or found.prefixlen != 64 or found.network_address.packed[0] != 0xFD:
        raise Damaged(
            f"{file}: {text[:60]!r} is no prefix such as fd12:3456:789a::/64; put it back, or remove the file"
        )
    return found


def _mac_here(name: str) -> str | None:
    """Of an interface; None: there is none of that name."""
    try:
        return rtnetlink.mac_of(name)
    except OSError:
        return None
