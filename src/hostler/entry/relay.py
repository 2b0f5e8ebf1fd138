"""Channels to machines of other processes: the agent's relay, which serves them as WebSockets, and its clients.

    GET /relay/{node}/{vm}/{kind}        Authorization: Ticket …

The channel `slice-log` belongs to a slice: its path has an artifact in place of the machine.

A client presents a ticket from the store for exactly this channel. Only processes of the control plane can write to the
store, so the ticket proves that the client is one of them. Every ticket is valid once.

An agent publishes the address of its relay in its node's record: `http://HOST:PORT`, or
`https://HOST:PORT#sha256:DIGEST` with the digest of its certificate. The digest is all that the client has to trust,
because the store vouches for the node.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from yarl import URL

from hostler.client.channel import Channel as SocketChannel
from hostler.client.transport import NotSent, open_socket
from hostler.engine.access.rate_limits import Slowing
from hostler.entry.process import relay_limits
from hostler.entry.server import body as incoming
from hostler.entry.server.logs import logger
from hostler.entry.server.pin import read_pinned
from hostler.entry.server.problem import INVALID, NOT_FOUND, Refusal, tell
from hostler.entry.server.protocol import CONNECTION
from hostler.entry.server.response import refuse
from hostler.entry.server.route import Raw
from hostler.entry.server.serve import ListenAddress, Server
from hostler.entry.server.websocket import GOING_AWAY, join_streams
from hostler.errors import Forbidden, Invalid, NotFound, Unauthenticated, Unavailable
from hostler.keys.families import MEMBER
from hostler.kit.clock import SystemClock
from hostler.kit.connections import origin
from hostler.kit.host import WILDCARDS
from hostler.kit.rate_limit import Backoff
from hostler.model.name import fold
from hostler.ports.machines import ChannelKind

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    import aiohttp

    from hostler.engine.tickets import PeerTickets
    from hostler.kit.clock import Clock
    from hostler.ports.machines import Channel, NodeChannels
    from hostler.ports.store import Store
    from hostler.settings import Settings


WITHIN = 15.0
"""Time limit in seconds for another process to accept the connection; a restarted agent must register within it."""
AGAIN = (0.1, 1.0)
"""First and longest delay in seconds before the address is read and tried again."""
SCHEME = "Ticket"
"""Authorization scheme of a ticket that one process sends to another."""


class ProcessPeers:
    """Implements `hostler.ports.machines.Peers`.

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

    def channel(self, node: str, vm: str, kind: ChannelKind) -> Channel:
        """Return a channel to a console, shell or port of a machine, to be entered by the caller."""
        here = self._machines_of(fold(node))
        if here is not None:
            return here.channel(vm, kind)
        return SocketChannel(f"{kind} of {vm} on node {node}", lambda: self._connect(fold(node), vm, kind))

    @asynccontextmanager
    async def _connect(self, node: str, vm: str, kind: ChannelKind) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Connect to the node's relay.

        If nothing listens at the address, the agent may have been restarted; the new agent writes another address. So
        the record is read again until the deadline.
        """
        loop = asyncio.get_running_loop()
        deadline, backoff = loop.time() + self._within, Backoff(*AGAIN)
        async with AsyncExitStack() as stack:
            while True:
                try:
                    connecting = await self._connecting(node, vm, kind, deadline - loop.time())
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
        self, node: str, vm: str, kind: ChannelKind, within: float
    ) -> AbstractAsyncContextManager[aiohttp.ClientWebSocketResponse]:
        url, pin = await self._place(node)
        ticket = await self._tickets.issue(node, vm, kind)
        path = "/".join(quote(part, safe="") for part in ("relay", node, vm, kind))
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


MOST = 1000
"""Most concurrent streams."""
GUESSES = 20
"""Wrong tickets per address without a delay; each further attempt waits twice as long as the one before."""


class RelayApp:
    """The ASGI app. `machines_of` returns the channels of this process's nodes, by folded node name."""

    def __init__(
        self,
        tickets: PeerTickets,
        machines_of: Callable[[str], NodeChannels | None],
        *,
        most: int = MOST,
        clock: Clock | None = None,
    ) -> None:
        self._tickets, self._machines_of, self._most = tickets, machines_of, most
        self._guesses = Slowing("ticket", clock=clock or SystemClock(), free=GUESSES)
        self._closing = asyncio.Event()
        self._log = logger(part="relay")
        self.streams = 0

    async def start(self) -> None:
        """Do nothing: no setup is needed before the first request."""

    def close(self) -> None:
        """End every stream."""
        self._closing.set()

    async def aclose(self) -> None:
        """Close the app; nothing else needs cleaning up."""
        self.close()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        raw = Raw(scope, receive, send, dict(scope["headers"]))
        try:
            await self._serve(raw)
        except Exception as error:  # noqa: BLE001 - every error is answered
            told = tell(error)
            if told.problem.status == 500:
                self._log.error("relay failed", path=scope["path"][:500], exc_info=error)
            await refuse(raw, told, unread=scope["type"] == "http" and incoming.announced(raw.headers))

    # Internal

    async def _serve(self, raw: Raw) -> None:
        node, vm, kind = _asked_for(raw.scope)
        if raw.scope["type"] != "websocket":
            raise Refusal(INVALID, "relay: only WebSocket (version 13) is supported; request an upgrade to websocket")
        await self._redeem(raw, node, vm, kind)
        machines = self._machines_of(node)
        if machines is None:
            raise Unavailable(
                f"node {node}: its agent does not run here, or has not started yet; read its record again"
            )
        if self.streams >= self._most or self._closing.is_set():
            raise Unavailable("relay: too many streams, or shutting down; try again later")
        self.streams += 1
        try:
            async with machines.channel(vm, kind) as channel:
                await raw.send({"type": "websocket.accept"})
                await join_streams(raw, channel, self._over())
        finally:
            self.streams -= 1

    async def _redeem(self, raw: Raw, node: str, vm: str, kind: ChannelKind) -> None:
        """Redeem the ticket. TooManyTries: the address sent too many wrong tickets, so the store is not asked.

        A guest may connect from the address of its node. So tickets with a valid seal of the control plane are not
        delayed.
        """
        client = raw.scope.get("client")
        source = origin(client[0]) if client else ""
        try:
            ticket = _ticket_of(raw.headers)
            if not await self._tickets.seals.fits(ticket):
                self._guesses.check(source)
            await self._tickets.redeem(ticket, node, vm, kind)
        except Unauthenticated:  # only failures count: many valid tickets may arrive at once
            self._guesses.record_failure(source)
            raise
        connection = raw.scope.get("state", {}).get(CONNECTION)
        if connection is not None and not connection.prove(reserved=True):
            raise Unavailable("relay: too many connections; try again later")

    async def _over(self) -> int:
        await self._closing.wait()
        return GOING_AWAY


def _asked_for(scope: Any) -> tuple[str, str, ChannelKind]:
    segments = scope["raw_path"].decode("ascii", "replace").split("/")[1:]
    if scope.get("method", "GET") != "GET" or len(segments) != 4 or segments[0] != "relay":
        raise Refusal(NOT_FOUND, "relay: path not found; this is not the API, ask a replica")
    node, vm, kind = incoming.path_parts(segments[1:])
    if kind not in set(ChannelKind):
        raise NotFound(f"channel {kind[:40]!r}: unknown; use one of those in the API reference")
    return fold(node), vm, ChannelKind(kind)


def _ticket_of(headers: dict[bytes, bytes]) -> str:
    scheme, _, ticket = headers.get(b"authorization", b"").partition(b" ")
    if scheme.decode("latin-1").lower() != SCHEME.lower() or not ticket.isascii():
        raise Unauthenticated("ticket: missing; only processes of this control plane may connect")
    return ticket.decode().strip()


class Relay:
    """A served relay."""

    def __init__(self, server: Server) -> None:
        self._server = server

    @property
    def address(self) -> str:
        """Return the address for the node's record: URL and certificate digest."""
        return self._server.pinned_url

    def reload_certificate(self) -> bool:
        """Reload the certificate as `Server.reload_certificate` does; a new certificate changes the address."""
        return self._server.reload_certificate()


@asynccontextmanager
async def relaying(
    settings: Settings, tickets: PeerTickets, machines_of: Callable[[str], NodeChannels | None]
) -> AsyncIterator[Relay]:
    """Serve the relay at the address of the settings. Invalid: other hosts could not reach it there."""
    from hostler.entry.control_plane import check_address

    host, port = check_address(settings, settings.agent_listen, "agent_listen")
    if host in WILDCARDS:
        raise Invalid(
            f"agent_listen {settings.agent_listen}: not an address that others can connect to; name the one by which"
            " they reach"
            " this host"
        )
    app = RelayApp(tickets, machines_of)
    address = ListenAddress(host, port, settings.tls_cert, settings.tls_key)
    async with Server(app, address, limits=relay_limits(settings)) as server:
        yield Relay(server)
