"""The way to a machine: of this process's nodes directly, of all others through the relay of their agents.

An agent says in its node's record where its relay is: `http://HOST:PORT`, or `https://HOST:PORT#sha256:DIGEST` with the
digest of its certificate, which is all that needs to be trusted there: the store says who the node is.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import aiohttp
from yarl import URL

from hostler.client.channel import Channel as SocketChannel
from hostler.client.wire import open_socket
from hostler.errors import Forbidden, Invalid, NotFound, Unavailable
from hostler.keys.node import MEMBER
from hostler.model.name import fold

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from hostler.engine.tickets import PeerTickets
    from hostler.ports.machines import Channel, Door
    from hostler.ports.peers import Doors
    from hostler.ports.store import Store

WITHIN = 15.0
"""Seconds that another process has to let us in."""
SCHEME = "Ticket"
"""Of the header that carries a ticket from one process to another."""
PIN = "sha256:"


class ProcessPeers:
    """`hostler.ports.peers.Peers`. `machines_of` knows the doors of this process's nodes, by their folded names."""

    def __init__(self, store: Store, tickets: PeerTickets, machines_of: Callable[[str], Doors | None]) -> None:
        self._store, self._tickets, self._machines_of = store, tickets, machines_of

    def channel(self, node: str, vm: str, door: Door) -> Channel:
        """Through a door of a machine, to be entered."""
        here = self._machines_of(fold(node))
        if here is not None:
            return here.channel(vm, door)
        return SocketChannel(f"{door} of {vm} on node {node}", lambda: self._relayed(fold(node), vm, door))

    @asynccontextmanager
    async def _relayed(self, node: str, vm: str, door: Door) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        url, pin = await self._place(node)
        ticket = await self._tickets.issue(node, vm, door)
        path = "/".join(quote(part, safe="") for part in ("relay", node, vm, door))
        headers = {"Authorization": f"{SCHEME} {ticket}"}
        named = f"agent of node {node}"
        connecting = open_socket(
            None, URL(f"{url}/{path}", encoded=True), headers, named=named, within=WITHIN, ssl=pin or True
        )
        try:
            socket = await connecting.__aenter__()
        except (Forbidden, Invalid) as error:  # of us as a process; the user who asked has done nothing wrong
            raise Unavailable(f"{named}: it did not let us in ({error})") from None
        try:
            yield socket
        finally:
            await connecting.__aexit__(None, None, None)

    async def _place(self, node: str) -> tuple[str, aiohttp.Fingerprint | None]:
        """Where the relay of the node's agent is, and the certificate that it must show."""
        entry = await MEMBER.get(self._store, node=node)
        if entry is None:
            raise NotFound(f"node {node}: there is none such; list the nodes")
        url, _, pinned = entry.value.address.partition("#")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https"):
            raise Unavailable(f"node {node}: its agent is another process and serves no relay; start it again")
        if parts.scheme == "http":
            return url, None
        try:
            return url, aiohttp.Fingerprint(bytes.fromhex(pinned.removeprefix(PIN)))
        except ValueError:
            raise Unavailable(
                f"node {node}: its record does not say which certificate its relay has; start its agent again"
            ) from None
