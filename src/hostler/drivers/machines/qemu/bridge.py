"""Guests on a bridge of the host. The IPv6 address of a guest is made of the bridge's prefix and the guest's MAC.

The tap of a machine is open only in its QEMU process. So it ends with that process even when the agent is dead, and
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
from hostler.drivers.machines.qemu.default_bridge import DefaultBridge
from hostler.drivers.machines.qemu.network import Attached
from hostler.drivers.machines.qemu.privileges import ENDS_WITHIN, PACE
from hostler.drivers.privileges import NET_ADMIN
from hostler.errors import HostlerError, Invalid, Refused, Unavailable
from hostler.kit.processes import has_capabilities

if TYPE_CHECKING:
    from collections.abc import Container

TUN = "/dev/net/tun"
SSH = 22
_TUNSETIFF, _SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCBRADDIF = 0x400454CA, 0x8913, 0x8914, 0x89A2
_SIOCGIFHWADDR, _SIOCSIFHWADDR, _ETHERNET = 0x8927, 0x8924, 1
_TAP, _NO_PACKET_INFO, _OFFLOAD_HEADER, _NEW_ONLY, _UP = 0x0002, 0x1000, 0x4000, 0x8000, 0x1
_LINK_LOCAL = IPv6Network("fe80::/64")


class BridgeNetwork:
    """Ports of one bridge. `prefix6` selects one of the bridge's prefixes; the default is its first.

    With `data` the bridge is Hostler's own bridge of that data folder, and `prefix6`, if given, is assigned to it.
    """

    def __init__(self, bridge: str, prefix6: str | None, place: str, *, data: Path | None = None) -> None:
        self._bridge, self._place = bridge, place
        self._prefix = prefix_of(prefix6) if prefix6 else None
        self._own = None if data is None else DefaultBridge(data, self._prefix)
        self._open_why = self._none_why = ""

    @property
    def about(self) -> str:
        if self._none_why:
            return f"none: {self._none_why}"
        held = f"; guests are not held to their addresses: {self._open_why}" if self._open_why else ""
        return f"bridge {self._bridge}{held}"

    @property
    def kind(self) -> str:
        """Hostler's own bridge ends at its host, so a running guest has its address nowhere else."""
        return "bridge" if self._own is None else f"bridge {self._prefix}"

    async def open(self) -> None:
        """Check whether guests can be restricted to their addresses; create the bridge if it is Hostler's own."""
        self._open_why = firewall.why_not()
        with suppress(HostlerError):  # the first start of a machine reports it again
            await asyncio.to_thread(self._make)

    def try_out(self) -> None:
        """Create everything that a machine needs, then remove the parts that are per machine.

        Refused, Unavailable: why a machine cannot be attached.
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
        """Create the bridge if it is Hostler's own. Repeated for each machine, because it may have been deleted."""
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
                f"network bridge:{self._bridge}: a tap needs CAP_NET_ADMIN, which this process lacks; "
                "run the agent as root or with that capability, or set network = user"
            )

    async def attach(self, number: int, mac: str, *, port: int = 0, taken: Container[int] = ()) -> Attached:
        """Attach a machine (see `network.Network`). Ports of this host are not used."""
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

    def close_descriptors(self, attached: Attached) -> None:
        """Close the tap here; QEMU alone keeps it open. Without a QEMU process the tap ends."""
        for descriptor in attached.descriptors:
            os.close(descriptor)

    async def detach(self, number: int) -> None:
        """Remove the packet filter rules of a machine."""
        if not self._open_why:
            await firewall.remove("netdev", [firewall.table_name(self._place, number)])

    async def reclaim(self, kept: Container[int]) -> None:
        """Remove the rules of all machines except `kept`."""
        if not self._open_why:
            found = await firewall.machine_tables(self._place)
            await firewall.remove("netdev", [name for number, name in found.items() if number not in kept])

    async def aclose(self, *, empty: bool) -> None:
        """Remove the table that was set before the node used a bridge, unless machines may still need it."""
        if empty and not self._open_why:
            await firewall.remove("inet", [firewall.table_name(self._place)])

    async def _hold(self, number: int, tap: str, mac: str, address: IPv6Address) -> None:
        addresses = address, interface_address(_LINK_LOCAL, mac)
        table = firewall.table_name(self._place, number)
        if why := await firewall.apply(firewall.guest_rules(table, tap, mac, addresses)):
            raise Unavailable(f"tap {tap}: cannot set its firewall rules: {why}")

    def _gateway(self) -> tuple[IPv6Address, IPv6Network]:
        """Return the address of the bridge and the prefix of its guests."""
        try:
            socket.if_nametoindex(self._bridge)
        except OSError:
            raise Refused(
                f"bridge {self._bridge}: not found; create it: ip link add {self._bridge} type bridge"
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
                raise Unavailable(f"tap {tap}: another process still has it open; try again when that has ended")
            await asyncio.sleep(PACE)
        return descriptor

    def _new_tap(self, tap: str) -> int | None:
        """Create a tap; None: it already exists."""
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
            raise Refused(f"tap {tap}: cannot be created: {error.strerror}") from None
        with suppress(OSError):  # the host itself sends nothing on it
            Path(f"/proc/sys/net/ipv6/conf/{tap}/disable_ipv6").write_text("1", encoding="ascii")
        return descriptor

    def _join(self, tap: str, mac: str) -> None:
        """Add the tap to the bridge without changing the bridge's MAC, by which guests know their gateway."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            hardware = (
                b"\xfe" + bytes.fromhex(mac.replace(":", ""))[1:]
            )  # a bridge without a MAC takes the lowest of its ports
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
            fcntl.ioctl(control, _SIOCSIFHWADDR, own)  # an explicitly set MAC stays when ports are added or removed


def tap_name(place: str, number: int) -> str:
    """Return the tap name of a machine, unique on the host."""
    return "ht" + hashlib.sha256(f"{place}/{number}".encode()).hexdigest()[:12]


def prefix_of(text: str) -> IPv6Network:
    """Parse a prefix. Invalid: it is not an IPv6 prefix of 64 bits."""
    try:
        prefix = IPv6Network(text)
    except ValueError:
        prefix = None
    if prefix is None or prefix.prefixlen != 64:
        raise Invalid(f"network_prefix6 {text!r}: must be an IPv6 prefix of 64 bits, such as fd00:1:2:3::/64")
    return prefix


def interface_address(prefix: IPv6Network, mac: str) -> IPv6Address:
    """Return the address of an interface with this MAC in the prefix (RFC 4291, modified EUI-64)."""
    parts = bytes.fromhex(mac.replace(":", ""))
    suffix = bytes([parts[0] ^ 2]) + parts[1:3] + b"\xff\xfe" + parts[3:]
    return IPv6Address(int(prefix.network_address) | int.from_bytes(suffix, "big"))


def name_server(file: Path = Path("/etc/resolv.conf")) -> str:
    """Return the first name server of this host that an IPv6-only guest can reach; empty: none."""
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
    """Return the interface's addresses with prefixes of 64 bits, without link-local ones."""
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
