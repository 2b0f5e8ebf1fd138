"""The way to a machine: of this process's nodes directly, of all others through the relay of their agents.

An agent says in its node's record where its relay is: `http://HOST:PORT`, or `https://HOST:PORT#sha256:DIGEST` with the
digest of its certificate, which is all that needs to be trusted there: the store says who the node is.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from yarl import URL

from hostler.client.channel import Channel as SocketChannel
from hostler.client.transport import NotSent, open_socket
from hostler.entry.server.pin import read_pinned
from hostler.errors import Forbidden, Invalid, NotFound, Unavailable
from hostler.keys.node import MEMBER
from hostler.kit.backoff import Backoff
from hostler.model.name import fold

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    import aiohttp

    from hostler.engine.tickets import PeerTickets
    from hostler.ports.machines import Channel, Door
    from hostler.ports.peers import Doors
    from hostler.ports.store import Store

WITHIN = 15.0
"""Seconds that another process has to let us in; an agent that was started again has to register within them."""
AGAIN = (0.1, 1.0)
"""Seconds, at first and at most, before an address is read and tried again."""
SCHEME = "Ticket"
"""Of the header that carries a ticket from one process to another."""


class ProcessPeers:
    """`hostler.ports.peers.Peers`. `machines_of` knows the doors of this process's nodes, by their folded names."""

    def __init__(
        self,
        store: Store,
        tickets: PeerTickets,
        machines_of: Callable[[str], Doors | None],
        *,
        within: float = WITHIN,
    ) -> None:
        self._store, self._tickets, self._machines_of, self._within = store, tickets, machines_of, within

    def channel(self, node: str, vm: str, door: Door) -> Channel:
        """Through a door of a machine, to be entered."""
        here = self._machines_of(fold(node))
        if here is not None:
            return here.channel(vm, door)
        return SocketChannel(f"{door} of {vm} on node {node}", lambda: self._relayed(fold(node), vm, door))

    @asynccontextmanager
    async def _relayed(self, node: str, vm: str, door: Door) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Connect to the node's relay. An address where nothing listens may be that of an agent that was killed.

        The one that takes its place writes another address, so the record is read again until the deadline.
        """
        loop = asyncio.get_running_loop()
        deadline, backoff = loop.time() + self._within, Backoff(*AGAIN)
        async with AsyncExitStack() as stack:
            while True:
                try:
                    connecting = await self._connecting(node, vm, door, deadline - loop.time())
                    socket = await stack.enter_async_context(connecting)
                    break
                except NotSent:
                    pause = backoff.next()
                    if loop.time() + pause >= deadline:
                        raise
                    await asyncio.sleep(pause)
                except (Forbidden, Invalid) as error:  # of us as a process; the user who asked has done nothing wrong
                    raise Unavailable(f"agent of node {node}: it did not let us in ({error})") from None
            yield socket

    async def _connecting(
        self, node: str, vm: str, door: Door, within: float
    ) -> AbstractAsyncContextManager[aiohttp.ClientWebSocketResponse]:
        url, pin = await self._place(node)
        ticket = await self._tickets.issue(node, vm, door)
        path = "/".join(quote(part, safe="") for part in ("relay", node, vm, door))
        headers = {"Authorization": f"{SCHEME} {ticket}"}
        whole = URL(f"{url}/{path}", encoded=True)
        return open_socket(None, whole, headers, named=f"agent of node {node}", within=within, ssl=pin or True)

    async def _place(self, node: str) -> tuple[str, aiohttp.Fingerprint | None]:
        """Where the relay of the node's agent is, and the certificate that it must show."""
        entry = await MEMBER.get(self._store, node=node)
        if entry is None:
            raise NotFound(f"node {node}: there is none such; list the nodes")
        if urlsplit(entry.value.address).scheme not in ("http", "https"):
            raise Unavailable(f"node {node}: its agent is another process and serves no relay; start it again")
        try:
            return read_pinned(entry.value.address)
        except ValueError:
            raise Unavailable(
                f"node {node}: its record does not say which certificate its relay has; start its agent again"
            ) from None
