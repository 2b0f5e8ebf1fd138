"""Hostler's own bridge, for guests with an IPv6 address on a host without a prepared bridge.

The prefix is generated once per data folder and stored there (`bridge6`). It is a unique local prefix (RFC 4193), whose
random part is also in the MAC of the bridge. The bridge has that MAC from its creation on, and the MAC identifies it as
this folder's bridge. Another control plane on the same host creates a bridge of another name. The bridge is never
removed, because guests outlive the agent that created it.

Where no ioctl exists, the kernel is asked by rtnetlink. OSError: the kernel refuses.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import socket
import struct
from contextlib import suppress
from ipaddress import IPv6Network
from pathlib import Path
from typing import TYPE_CHECKING

from hostler.drivers.privileges import NET_ADMIN
from hostler.errors import Damaged, Refused, Unavailable
from hostler.kit.processes import has_capabilities

if TYPE_CHECKING:
    from ipaddress import IPv6Address

_NEWLINK, _NEWADDR, _ERROR = 16, 20, 2
_REQUEST, _ACK, _EXCL, _CREATE = 0x1, 0x4, 0x200, 0x400
_LINK_ADDRESS, _LINK_NAME, _LINK_INFO, _INFO_KIND = 1, 3, 18, 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_NO_DAD, _UP = 0x02, 0x1
_SIOCGIFHWADDR = 0x8927


def make_bridge(name: str, mac: str) -> None:
    """Create a bridge with that MAC from the start. FileExistsError: an interface of that name exists."""
    attributes = (
        _attribute(_LINK_NAME, name.encode() + b"\0")
        + _attribute(_LINK_ADDRESS, bytes.fromhex(mac.replace(":", "")))
        + _attribute(_LINK_INFO, _attribute(_INFO_KIND, b"bridge"))
    )
    _ask(_NEWLINK, _CREATE | _EXCL, struct.pack("BxHiII", socket.AF_UNSPEC, 0, 0, 0, 0) + attributes)


def set_up(index: int) -> None:
    """Set an interface up."""
    _ask(_NEWLINK, 0, struct.pack("BxHiII", socket.AF_UNSPEC, 0, index, _UP, _UP))


def add_address(index: int, address: IPv6Address, length: int) -> None:
    """Add an address, usable at once without duplicate address detection. FileExistsError: it exists."""
    header = struct.pack("BBBBi", socket.AF_INET6, length, _NO_DAD, 0, index)
    attributes = _attribute(_IFA_LOCAL, address.packed) + _attribute(_IFA_ADDRESS, address.packed)
    _ask(_NEWADDR, _CREATE | _EXCL, header + attributes)


def mac_of(interface: str) -> str:
    """Return the MAC of an interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        answer = fcntl.ioctl(control, _SIOCGIFHWADDR, struct.pack("16s24x", interface.encode()))
    return answer[18:24].hex(":")


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _ask(kind: int, flags: int, body: bytes) -> None:
    message = struct.pack("IHHII", 16 + len(body), kind, _REQUEST | _ACK | flags, 1, 0) + body
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as kernel:
        kernel.bind((0, 0))
        kernel.send(message)
        answer = kernel.recv(65536)
    _, answered, _, _, _ = struct.unpack_from("IHHII", answer)
    code = -struct.unpack_from("i", answer, 16)[0] if answered == _ERROR else errno.EPROTO
    if code:
        raise OSError(code, os.strerror(code))


USUAL = "hostler0"
FILE = "bridge6"


class DefaultBridge:
    """The bridge of the data folder `data`; `prefix`: the prefix of its guests, if not the folder's own."""

    def __init__(self, data: Path, prefix: IPv6Network | None = None) -> None:
        self._data, self._prefix = data, prefix

    def make(self) -> tuple[str, IPv6Network]:
        """Create the bridge with its address and set it up; return its name and its guests' prefix. Repeatable.

        Refused: this host does not allow it.
        """
        if not has_capabilities(NET_ADMIN):
            raise Refused(
                "network bridge: a bridge needs CAP_NET_ADMIN, which this process lacks; run it as root or with that"
                " capability"
            )
        own = load_prefix(self._data)
        mac = mac_of_prefix(own)
        try:
            name = self._stands(own, mac) or self._new(own, mac)
            prefix = self._prefix or own
            self._ready(name, prefix)
        except OSError as error:
            raise Refused(
                f"network bridge: this host does not allow creating a bridge: {error.strerror}; create one yourself and"
                " name it: network = bridge:NAME"
            ) from None
        return name, prefix

    def _stands(self, own: IPv6Network, mac: str) -> str | None:
        return next((name for name in names(own) if _mac_here(name) == mac), None)

    def _new(self, own: IPv6Network, mac: str) -> str:
        for name in names(own):
            with suppress(FileExistsError):
                make_bridge(name, mac)
                return name
            if _mac_here(name) == mac:  # another process of this folder was faster
                return name
        raise Refused(f"network bridge: {' and '.join(names(own))} belong to others; name a bridge: bridge:NAME")

    def _ready(self, name: str, prefix: IPv6Network) -> None:
        for setting in ("disable_ipv6", "accept_dad"):
            with suppress(OSError):  # the default may already be right, and the address is not waited for anyway
                Path(f"/proc/sys/net/ipv6/conf/{name}/{setting}").write_text("0", encoding="ascii")
        index = socket.if_nametoindex(name)
        set_up(index)
        with suppress(FileExistsError):
            add_address(index, prefix[1], prefix.prefixlen)


def names(own: IPv6Network) -> tuple[str, str]:
    """Return the possible names of the bridge of a folder with that prefix, in order of preference."""
    return USUAL, "hs" + hashlib.sha256(str(own).encode()).hexdigest()[:8]


def mac_of_prefix(own: IPv6Network) -> str:
    """Return a locally administered address with the 40 random bits of the prefix."""
    return "02:" + ":".join(f"{byte:02x}" for byte in own.network_address.packed[1:6])


def new_prefix() -> IPv6Network:
    """Return the first of the 65536 subnets of a new random site (RFC 4193)."""
    return IPv6Network((b"\xfd" + secrets.token_bytes(5) + bytes(10), 64))


def load_prefix(data: Path) -> IPv6Network:
    """Return the prefix of the data folder, generated if missing. Unavailable: cannot be stored.

    Damaged: not a prefix.
    """
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
        raise Unavailable(f"{file}: cannot store the bridge's prefix: {error.strerror}; fix the cause") from None
    try:
        found = IPv6Network(text)
    except ValueError:
        found = None
    if found is None or found.prefixlen != 64 or found.network_address.packed[0] != 0xFD:
        raise Damaged(f"{file}: {text[:60]!r} is not a prefix such as fd12:3456:789a::/64; correct or remove the file")
    return found


def _mac_here(name: str) -> str | None:
    """Return the MAC of an interface; None: no such interface."""
    try:
        return mac_of(name)
    except OSError:
        return None
