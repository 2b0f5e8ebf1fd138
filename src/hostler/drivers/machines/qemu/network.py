"""Networks of guests: how a guest is reached, and what it can reach.

`user`: QEMU's own stack, which needs no privileges; the guest's SSH port is a loopback port of this host. `isolated`:
the same, but the guest can reach nothing. `bridge:NAME`: the guest is on a bridge and has its own IPv6 address.
`bridge`: the same, on a bridge that Hostler creates.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import re
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from hostler.drivers.machines.qemu import firewall
from hostler.drivers.machines.qemu.privileges import PACE
from hostler.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import Container

PORTS_FROM = 20_000
"""First port.

The range ends where the kernel's ephemeral ports begin, so that outgoing connections take none of them.
"""
PORTS_UP_TO = 32_768
PORT_WITHIN = 0.5
"""Seconds that a machine waits for the port it had."""


class Attached(msgspec.Struct, frozen=True, kw_only=True):
    """The network attachment of one machine."""

    netdev: str
    """Value of `-netdev`; its id is `n0`."""
    host: str
    """Where this host reaches its SSH server."""
    port: int
    ip4: str = ""
    gw4: str = ""
    dns: str = ""
    ip6: str = ""
    gw6: str = ""
    """Configuration of the guest (addresses with their prefix length); empty: none."""
    forwarded: bool = False
    """Whether `port` is a port of this host: it is kept in the machine's state, and may turn out to be taken."""
    descriptors: tuple[int, ...] = ()
    """Descriptors that QEMU inherits under the same numbers; `Network.close_descriptors` closes the agent's copies."""


class Network(Protocol):
    """Network of the machines of one node, returned by `network_of`. Machines are identified by their numbers."""

    @property
    def about(self) -> str:
        """Description for the properties of the node."""

    @property
    def kind(self) -> str:
        """A running guest can be migrated to another node if both have the same kind."""

    async def open(self) -> None:
        """Set up what all machines share; called before anything else."""

    async def attach(self, number: int, mac: str, *, port: int = 0, taken: Container[int] = ()) -> Attached:
        """Create what a machine needs to start. `port`: the one it had; `taken`: ports of others and ports that failed.

        Refused: impossible on this host for any machine. Unavailable: not now.
        """

    def close_descriptors(self, attached: Attached) -> None:
        """Close the descriptors after QEMU inherited them. If QEMU was never started, `detach` follows."""

    async def detach(self, number: int) -> None:
        """Remove what `attach` left of a machine that is off. Repeatable."""

    async def reclaim(self, kept: Container[int]) -> None:
        """Do the same for all machines not in `kept`, also those attached by other processes."""

    async def aclose(self, *, empty: bool) -> None:
        """Close the network; `empty`: no machine is left, and everything that `open` set up is removed."""


class UserNetwork:
    """QEMU's own network stack: 10.0.2.0/24, the guest is .15, the gateway .2, the name server .3.

    That stack lets the guest reach this host's loopback at the gateway's address. QEMU has no option against that. The
    packet filter can prevent it where machines run as separate users.
    """

    def __init__(self, place: str, uids: range | None, *, folder: Path | None = None, isolated: bool = False) -> None:
        self._place, self._uids, self._folder, self._isolated = place, uids, folder, isolated
        self._open_why = ""
        self._from_bridge: dict[int, str] | None = None
        """Tables of machines that were attached while this node used a bridge; None: not read yet."""

    @property
    def about(self) -> str:
        if self._isolated:
            return "isolated"
        return f"user; guests reach this host's loopback: {self._open_why}" if self._open_why else "user"

    @property
    def kind(self) -> str:
        return "user"

    async def open(self) -> None:
        """Block access to this host, if possible."""
        if self._isolated:
            return
        self._open_why = firewall.why_not() if self._uids is not None else "they do not run as separate users"
        if self._uids is not None and not self._open_why:
            rules = firewall.loopback_rules(firewall.table_name(self._place), self._uids, self._folder)
            self._open_why = await firewall.apply(rules)
            await firewall.remove("inet", await firewall.abandoned())

    async def attach(self, number: int, mac: str, *, port: int = 0, taken: Container[int] = ()) -> Attached:
        """Attach a machine (see `Network.attach`). The MAC is not used."""
        del mac
        port = await self._port(number, port, taken)
        restrict = ",restrict=on" * self._isolated
        return Attached(
            netdev=f"user,id=n0,ipv6=off{restrict},hostfwd=tcp:127.0.0.1:{port}-:22",
            host="127.0.0.1",
            port=port,
            ip4="10.0.2.15/24",
            gw4="10.0.2.2",
            dns="10.0.2.3",
            forwarded=True,
        )

    async def _port(self, number: int, first: int, taken: Container[int]) -> int:
        end = time.monotonic() + PORT_WITHIN
        while (port := pick_port(self._place, number, first=first, taken=taken)) != first:
            if not first or first in taken or time.monotonic() > end:
                break
            await asyncio.sleep(PACE)  # the machine's last process may be about to end
        return port

    def close_descriptors(self, attached: Attached) -> None:
        """Do nothing: QEMU inherits no descriptors."""

    async def detach(self, number: int) -> None:
        """Remove a table that the machine got on a bridge. The port ends with the process."""
        table = (await self._tables()).pop(number, None)
        if table is not None:
            await firewall.remove("netdev", [table])

    async def reclaim(self, kept: Container[int]) -> None:
        """Do the same for all machines except `kept`."""
        tables = await self._tables()
        gone = [number for number in tables if number not in kept]
        await firewall.remove("netdev", [tables.pop(number) for number in gone])

    async def _tables(self) -> dict[int, str]:
        if self._from_bridge is None:
            self._from_bridge = {} if firewall.why_not() else await firewall.machine_tables(self._place)
        return self._from_bridge

    async def aclose(self, *, empty: bool) -> None:
        """Remove the rules if no machine is left; they stay for as long as machines may run."""
        if empty and self._uids is not None and not self._isolated and not self._open_why:
            await firewall.remove("inet", [firewall.table_name(self._place)])


def network_of(
    network: str,
    prefix6: str | None,
    *,
    place: str,
    uids: range | None,
    folder: Path | None = None,
    data: Path | None = None,
) -> Network:
    """Return the network for the settings `network` and `network_prefix6` of the node in `folder`.

    Invalid: no such network. `data`: the folder that Hostler's own bridge belongs to.
    """
    if network in ("user", "isolated"):
        return UserNetwork(place, uids, folder=folder, isolated=network == "isolated")
    from hostler.drivers.machines.qemu.bridge import BridgeNetwork

    if network == "bridge" and data is not None:
        return BridgeNetwork("", prefix6, place, data=data)
    kind, _, bridge = network.partition(":")
    if kind != "bridge" or not re.fullmatch(r"[A-Za-z0-9_.-]{1,15}", bridge):
        raise Invalid(f"network {network!r}: must be user, isolated, bridge or bridge:NAME")
    return BridgeNetwork(bridge, prefix6, place)


def pick_port(place: str, number: int, *, first: int = 0, taken: Container[int] = ()) -> int:
    """Return a free loopback port: `first` if it is free, otherwise a stable one derived from the machine."""
    digest = hashlib.sha256(f"{place}/{number}".encode()).digest()
    start, span = int.from_bytes(digest[:8], "big"), _ports_up_to() - PORTS_FROM
    tries = (PORTS_FROM + (start + step) % span for step in range(span))  # lazily: most often the first one is free
    for port in itertools.chain([first] if first else [], tries):
        if port not in taken and _is_free(port):
            return port
    raise Unavailable(f"ports {PORTS_FROM}-{PORTS_FROM + span - 1}: none is free on 127.0.0.1")


def port_was_taken(said: str) -> bool:
    """Return whether QEMU did not start because its port was taken. Attach again with that port in `taken`."""
    return "Could not set up host forwarding rule" in said


def _ports_up_to() -> int:
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
        up_to = int(text.split()[0])
    except (OSError, ValueError, IndexError):
        up_to = PORTS_UP_TO
    return up_to if up_to > PORTS_FROM + 1000 else PORTS_UP_TO


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as QEMU does: old connections do not matter
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
