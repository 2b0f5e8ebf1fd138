"""Channels to machines: direct for nodes of this process, through the relay of the agent for all other nodes.

An agent publishes the address of its relay in its node's record: `http://HOST:PORT`, or
`https://HOST:PORT#sha256:DIGEST` with the digest of its certificate. The digest is all that the client has to trust,
because the store vouches for the node.
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
    from hostler.ports.peers import NodeChannels
    from hostler.ports.store import Store

WITHIN = 15.0
"""Time limit in seconds for another process to accept the connection; a restarted agent must register within it."""
AGAIN = (0.1, 1.0)
"""First and longest delay in seconds before the address is read and tried again."""
SCHEME = "Ticket"
"""Authorization scheme of a ticket that one process sends to another."""


class ProcessPeers:
    """Implements `hostler.ports.peers.Peers`.

    `machines_of` returns the channels of this process's nodes, by folded node name.
    """

    def __init__(
        self,
        store: Store,
        tickets: PeerTickets,
        machines_of: Callable[[str], NodeChannels | None],
        *,
        within: float = WITHIN,
    ) -> None:
        self._store, self._tickets, self._machines_of, self._within = store, tickets, machines_of, within

    def channel(self, node: str, vm: str, door: Door) -> Channel:
        """Return a channel to a console, shell or port of a machine, to be entered by the caller."""
        here = self._machines_of(fold(node))
        if here is not None:
            return here.channel(vm, door)
        return SocketChannel(f"{door} of {vm} on node {node}", lambda: self._relayed(fold(node), vm, door))

    @asynccontextmanager
    async def _relayed(self, node: str, vm: str, door: Door) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Connect to the node's relay.

        If nothing listens at the address, the agent may have been restarted; the new agent writes another address. So
        the record is read again until the deadline.
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
                except (Forbidden, Invalid) as error:  # the relay refuses this process; the user's request is not wrong
                    raise Unavailable(f"agent of node {node}: it refused the connection ({error})") from None
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
        """Return the URL of the relay of the node's agent, and the certificate that it must present."""
        entry = await MEMBER.get(self._store, node=node)
        if entry is None:
            raise NotFound(f"node {node}: not found; list the nodes")
        if urlsplit(entry.value.address).scheme not in ("http", "https"):
            raise Unavailable(f"node {node}: its agent is another process and serves no relay; restart it")
        try:
            return read_pinned(entry.value.address)
        except ValueError:
            raise Unavailable(f"node {node}: its record has no certificate of its relay; restart its agent") from None
