"""How a guest is reached, and what it reaches.

`user`: QEMU's own stack, no rights needed; the guest's SSH port is a port of this host's loopback. `isolated`: the
same, and the guest reaches nothing. `bridge:NAME`: the guest is on a bridge and has an IPv6 address of its own.
`bridge`: so, on a bridge that Hostler makes.
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
from hostler.drivers.machines.qemu.cgroup import PACE
from hostler.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import Container

PORTS_FROM = 20_000
"""Up to where the kernel's own choices begin, so that no outgoing connection of the host takes a port that is free."""
PORTS_UP_TO = 32_768
PORT_WITHIN = 0.5
"""Seconds that a machine waits for the port it had."""


class Attached(msgspec.Struct, frozen=True, kw_only=True):
    """One machine's place in the network."""

    netdev: str
    """For `-netdev`; its id is `n0`."""
    host: str
    """Where its SSH server answers, for this host."""
    port: int
    ip4: str = ""
    gw4: str = ""
    dns: str = ""
    ip6: str = ""
    gw6: str = ""
    """What the guest is told (addresses with their prefix length); empty: nothing."""
    forwarded: bool = False
    """Whether `port` is one of this host's: it is kept in the machine's state, and may turn out to be taken."""
    descriptors: tuple[int, ...] = ()
    """That QEMU inherits under the same numbers; `Network.started` closes ours."""


class Network(Protocol):
    """Of the machines of one place: what `network_of` gives. Machines are named by their numbers."""

    @property
    def about(self) -> str:
        """For the node's facts."""

    @property
    def kind(self) -> str:
        """A guest that runs can be handed to another place if this is the same there."""

    async def open(self) -> None:
        """Set up what belongs to all machines; before anything else."""

    async def attach(self, number: int, mac: str, *, port: int = 0, taken: Container[int] = ()) -> Attached:
        """Make what a machine needs to start. `port`: the one it had; `taken`: those of others and those that failed.

        Refused: it cannot be on this host, whatever the machine. Unavailable: not now.
        """

    def started(self, attached: Attached) -> None:
        """QEMU has what it inherits; or it was never started, then `detach` follows."""

    async def detach(self, number: int) -> None:
        """Take away what is left of `attach`, of a machine that is off; to be repeated."""

    async def reclaim(self, kept: Container[int]) -> None:
        """The same for all that are not among `kept`, whoever attached them."""

    async def aclose(self, *, empty: bool) -> None:
        """Leave; `empty`: there is no machine any more, and nothing of `open` shall stay."""


class UserNetwork:
    """QEMU's own network stack: 10.0.2.0/24, the guest is .15, the gateway .2, the name server .3.

    That stack takes the guest to this host's loopback at the gateway's address. QEMU cannot be told otherwise, but the
    packet filter can, where machines run as users of their own.
    """

    def __init__(self, place: str, uids: range | None, *, folder: Path | None = None, isolated: bool = False) -> None:
        self._place, self._uids, self._folder, self._isolated = place, uids, folder, isolated
        self._open_why = ""
        self._from_bridge: dict[int, str] | None = None
        """Tables of machines that were attached while this place had a bridge; None: not read yet."""

    @property
    def about(self) -> str:
        if self._isolated:
            return "isolated"
        return f"user; guests reach this host's loopback: {self._open_why}" if self._open_why else "user"

    @property
    def kind(self) -> str:
        return "user"

    async def open(self) -> None:
        """Close the way to this host, if that can be."""
        if self._isolated:
            return
        self._open_why = firewall.why_not() if self._uids is not None else "they have no users of their own"
        if self._uids is not None and not self._open_why:
            rules = firewall.loopback_rules(firewall.table_name(self._place), self._uids, self._folder)
            self._open_why = await firewall.apply(rules)
            await firewall.remove("inet", await firewall.abandoned())

    async def attach(self, number: int, mac: str, *, port: int = 0, taken: Container[int] = ()) -> Attached:
        """As promised. The MAC needs nothing here."""
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

    def started(self, attached: Attached) -> None:
        """Nothing is inherited."""

    async def detach(self, number: int) -> None:
        """The port goes with the process. A table that the machine got on a bridge is removed."""
        table = (await self._tables()).pop(number, None)
        if table is not None:
            await firewall.remove("netdev", [table])

    async def reclaim(self, kept: Container[int]) -> None:
        """The same for all but `kept`."""
        tables = await self._tables()
        gone = [number for number in tables if number not in kept]
        await firewall.remove("netdev", [tables.pop(number) for number in gone])

    async def _tables(self) -> dict[int, str]:
        if self._from_bridge is None:
            self._from_bridge = {} if firewall.why_not() else await firewall.machine_tables(self._place)
        return self._from_bridge

    async def aclose(self, *, empty: bool) -> None:
        """The rules stand for as long as machines may run."""
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
    """By the settings `network` and `network_prefix6`, for the place in `folder`. Invalid: there is no such network.

    `data`: the folder that a bridge of our own belongs to.
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
    """A loopback port that nobody has: `first` if it can be had, else one that this machine would try again."""
    digest = hashlib.sha256(f"{place}/{number}".encode()).digest()
    start, span = int.from_bytes(digest[:8], "big"), _ports_up_to() - PORTS_FROM
    tries = (PORTS_FROM + (start + step) % span for step in range(span))  # one by one: most often the first will do
    for port in itertools.chain([first] if first else [], tries):
        if port not in taken and _is_free(port):
            return port
    raise Unavailable(f"ports {PORTS_FROM}-{PORTS_FROM + span - 1}: none is free on 127.0.0.1")


def port_was_taken(said: str) -> bool:
    """Whether QEMU did not start because somebody was faster with its port; attach again, with another `taken`."""
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
