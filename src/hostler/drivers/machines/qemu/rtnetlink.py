"""Requests to the kernel about links (rtnetlink), where no ioctl exists. OSError: the kernel refuses."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from typing import TYPE_CHECKING

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
