"""Guests on a bridge of the host: each has an IPv6 address of its own, made of the bridge's prefix and its MAC.

A machine's tap is open in its process and nowhere else, so it ends when that process does, whoever else is dead then:
nothing has to be found and removed later.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import os
import secrets
import socket
import struct
import time
from contextlib import suppress
from ipaddress import IPv6Address, IPv6Network
from pathlib import Path
from typing import TYPE_CHECKING

from hostler.drivers.machines.qemu import firewall
from hostler.drivers.machines.qemu.cgroup import ENDS_WITHIN, PACE
from hostler.drivers.machines.qemu.default_bridge import OwnBridge
from hostler.drivers.machines.qemu.network import Attached
from hostler.drivers.machines.qemu.privileges import NET_ADMIN, has_capabilities
from hostler.errors import HostlerError, Invalid, Refused, Unavailable

if TYPE_CHECKING:
    from collections.abc import Container

TUN = "/dev/net/tun"
SSH = 22
_TUNSETIFF, _SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCBRADDIF = 0x400454CA, 0x8913, 0x8914, 0x89A2
_SIOCGIFHWADDR, _SIOCSIFHWADDR, _ETHERNET = 0x8927, 0x8924, 1
_TAP, _NO_PACKET_INFO, _OFFLOAD_HEADER, _NEW_ONLY, _UP = 0x0002, 0x1000, 0x4000, 0x8000, 0x1
_LINK_LOCAL = IPv6Network("fe80::/64")


class BridgeNetwork:
    """Members of one bridge. `prefix6`: which of the bridge's prefixes; without one, its first.

    Without a name it is Hostler's own, of the data folder `data`; the prefix is then what it gets, if one is given.
    """

    def __init__(self, bridge: str, prefix6: str | None, place: str, *, data: Path | None = None) -> None:
        self._bridge, self._place = bridge, place
        self._prefix = prefix_of(prefix6) if prefix6 else None
        self._own = None if data is None else OwnBridge(data, self._prefix)
        self._open_why = self._none_why = ""

    @property
    def about(self) -> str:
        if self._none_why:
            return f"none: {self._none_why}"
        held = f"; guests are not held to their addresses: {self._open_why}" if self._open_why else ""
        return f"bridge {self._bridge}{held}"

    @property
    def kind(self) -> str:
        """One of our own ends at its host: a guest that runs has its address nowhere else."""
        return "bridge" if self._own is None else f"bridge {self._prefix}"

    async def open(self) -> None:
        """See whether guests can be held to their addresses; make the bridge, if it is ours."""
        self._open_why = firewall.why_not()
        with suppress(HostlerError):  # the first machine that starts says so again
            await asyncio.to_thread(self._make)

    def try_out(self) -> None:
        """Make all that a machine needs, and take away again what is each machine's own.

        Refused, Unavailable: why it cannot be.
        """
        self._make()
        self._check_rights()
        self._gateway()
        tap = tap_name(self._place, secrets.randbits(64))
        descriptor = self._new_tap(tap)
        if descriptor is not None:
            try:
                self._join(tap, "52:54:00:00:00:00")
            finally:
                os.close(descriptor)

    def _make(self) -> None:
        """Have the bridge, if it is ours; again for each machine, for somebody may have taken it away."""
        if self._own is None:
            return
        try:
            self._bridge, self._prefix = self._own.make()
        except HostlerError as error:
            self._none_why = str(error)
            raise
        self._none_why = ""

    def _check_rights(self) -> None:
        if not has_capabilities(NET_ADMIN):
            raise Refused(
                f"network bridge:{self._bridge}: a tap takes CAP_NET_ADMIN, which this process has not; "
                "run the agent as root or with that capability, or set network = user"
            )

    async def attach(self, number: int, mac: str, *, port: int = 0, taken: Container[int] = ()) -> Attached:
        """As promised. Ports of this host are not needed."""
        del port, taken
        await asyncio.to_thread(self._make)
        self._check_rights()
        gateway, prefix = self._gateway()
        address = interface_address(prefix, mac)
        tap = tap_name(self._place, number)
        descriptor = await self._open_tap(tap)
        try:
            if not self._open_why:
                await self._hold(number, tap, mac, address)
            await asyncio.to_thread(self._join, tap, mac)
        except BaseException:
            os.close(descriptor)
            raise
        return Attached(
            netdev=f"tap,id=n0,fd={descriptor}",
            host=str(address),
            port=SSH,
            ip6=f"{address}/{prefix.prefixlen}",
            gw6=str(gateway),
            dns=name_server(),
            descriptors=(descriptor,),
        )

    def started(self, attached: Attached) -> None:
        """The tap is QEMU's alone; if there is none, it ends here."""
        for descriptor in attached.descriptors:
            os.close(descriptor)

    async def detach(self, number: int) -> None:
        """Take the machine's rules away."""
        if not self._open_why:
            await firewall.remove("netdev", [firewall.table_name(self._place, number)])

    async def reclaim(self, kept: Container[int]) -> None:
        """The same for all but `kept`."""
        if not self._open_why:
            found = await firewall.machine_tables(self._place)
            await firewall.remove("netdev", [name for number, name in found.items() if number not in kept])

    async def aclose(self, *, empty: bool) -> None:
        """Remove the table that the place got before it had a bridge, unless machines may still need it."""
        if empty and not self._open_why:
            await firewall.remove("inet", [firewall.table_name(self._place)])

    async def _hold(self, number: int, tap: str, mac: str, address: IPv6Address) -> None:
        addresses = address, interface_address(_LINK_LOCAL, mac)
        table = firewall.table_name(self._place, number)
        if why := await firewall.apply(firewall.guest_rules(table, tap, mac, addresses)):
            raise Unavailable(f"tap {tap}: its rules cannot be set: {why}")

    def _gateway(self) -> tuple[IPv6Address, IPv6Network]:
        """The bridge's own address, and the prefix that its guests are in."""
        try:
            socket.if_nametoindex(self._bridge)
        except OSError:
            raise Refused(
                f"bridge {self._bridge}: there is none of that name; make it: ip link add {self._bridge} type bridge"
            ) from None
        for address, prefix in addresses_of(self._bridge):
            if self._prefix is None or prefix == self._prefix:
                return address, prefix
        wanted = f"in {self._prefix}" if self._prefix else "with a prefix of 64 bits"
        raise Refused(
            f"bridge {self._bridge}: it has no IPv6 address {wanted}; give it one: "
            f"ip address add {(self._prefix or IPv6Network('fd00::/64'))[1]}/64 dev {self._bridge}"
        )

    async def _open_tap(self, tap: str) -> int:
        end = time.monotonic() + ENDS_WITHIN
        while (descriptor := self._new_tap(tap)) is None:  # an earlier process may be about to end
            if time.monotonic() > end:
                raise Unavailable(f"tap {tap}: a process still has it; it ends with that one")
            await asyncio.sleep(PACE)
        return descriptor

    def _new_tap(self, tap: str) -> int | None:
        """None: it is there already."""
        try:
            descriptor = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise Refused(f"{TUN}: cannot be opened: {error.strerror}; load the module: modprobe tun") from None
        try:
            flags = _TAP | _NO_PACKET_INFO | _OFFLOAD_HEADER | _NEW_ONLY
            fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", tap.encode(), flags))
        except OSError as error:
            os.close(descriptor)
            if error.errno == errno.EBUSY:
                return None
            raise Refused(f"tap {tap}: cannot be made: {error.strerror}") from None
        with suppress(OSError):  # the host itself says nothing on it
            Path(f"/proc/sys/net/ipv6/conf/{tap}/disable_ipv6").write_text("1", encoding="ascii")
        return descriptor

    def _join(self, tap: str, mac: str) -> None:
        """Make it a member that leaves the bridge's own MAC alone: guests know their gateway by that one."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            hardware = (
                b"\xfe" + bytes.fromhex(mac.replace(":", ""))[1:]
            )  # a bridge without one takes its members' lowest
            fcntl.ioctl(control, _SIOCSIFHWADDR, struct.pack("16sH6s16x", tap.encode(), _ETHERNET, hardware))
            try:
                index = socket.if_nametoindex(tap)
                fcntl.ioctl(control, _SIOCBRADDIF, struct.pack("16si20x", self._bridge.encode(), index))
            except OSError as error:
                raise Refused(
                    f"bridge {self._bridge}: tap {tap} cannot join it: {error.strerror}; name a bridge in network"
                ) from None
            request = fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack("16sH22x", tap.encode(), 0))
            (flags,) = struct.unpack_from("H", request, 16)
            fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", tap.encode(), flags | _UP))
            own = fcntl.ioctl(control, _SIOCGIFHWADDR, struct.pack("16s24x", self._bridge.encode()))
            fcntl.ioctl(control, _SIOCSIFHWADDR, own)  # what was set stays, whoever comes and goes


def tap_name(place: str, number: int) -> str:
    """Of a machine; no other place's machine has it."""
    return "ht" + hashlib.sha256(f"{place}/{number}".encode()).hexdigest()[:12]


def prefix_of(text: str) -> IPv6Network:
    """Invalid: it is no prefix of 64 bits."""
    try:
        prefix = IPv6Network(text)
    except ValueError:
        prefix = None
    if prefix is None or prefix.prefixlen != 64:
        raise Invalid(f"network_prefix6 {text!r}: must be an IPv6 prefix of 64 bits, such as fd00:1:2:3::/64")
    return prefix


def interface_address(prefix: IPv6Network, mac: str) -> IPv6Address:
    """The address that an interface with this MAC has in the prefix (RFC 4291, modified EUI-64)."""
    parts = bytes.fromhex(mac.replace(":", ""))
    suffix = bytes([parts[0] ^ 2]) + parts[1:3] + b"\xff\xfe" + parts[3:]
    return IPv6Address(int(prefix.network_address) | int.from_bytes(suffix, "big"))


def name_server(file: Path = Path("/etc/resolv.conf")) -> str:
    """The first of this host's that a guest with IPv6 alone can ask; empty: none."""
    try:
        lines = [line.split() for line in file.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return ""
    for line in lines:
        if len(line) > 1 and line[0] == "nameserver":
            with suppress(ValueError):
                address = IPv6Address(line[1])
                if not address.is_loopback and not address.is_link_local:
                    return str(address)
    return ""


def addresses_of(interface: str, table: Path = Path("/proc/net/if_inet6")) -> list[tuple[IPv6Address, IPv6Network]]:
    """Its addresses with prefixes of 64 bits, link-local ones left out."""
    try:
        lines = [line.split() for line in table.read_text(encoding="ascii").splitlines()]
    except OSError:
        return []
    found = []
    for digits, _, length, _, _, name in lines:
        if name == interface and int(length, 16) == 64:
            address = IPv6Address(int(digits, 16))
            if not address.is_link_local:
                found.append((address, IPv6Network((int(address) >> 64 << 64, 64))))
    return found
