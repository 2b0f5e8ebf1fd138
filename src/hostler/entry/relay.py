"""The agent's relay: channels to its machines for other processes of the control plane, as WebSockets.

    GET /relay/{node}/{vm}/{door}        Authorization: Ticket …

The channel `slice-log` belongs to a slice: its path has an artifact in place of the machine.

A client presents a ticket from the store for exactly this channel. Only processes of the control plane can write to the
store, so the ticket proves that the client is one of them. Every ticket is valid once.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from hostler.engine.access.login_throttle import Slowing
from hostler.entry.open_files import relay_limits
from hostler.entry.peers import SCHEME
from hostler.entry.server import body as incoming
from hostler.entry.server.logs import logger
from hostler.entry.server.problem import INVALID, NOT_FOUND, Refusal, tell
from hostler.entry.server.protocol import CONNECTION
from hostler.entry.server.response import refuse
from hostler.entry.server.route import Raw
from hostler.entry.server.serve import Server
from hostler.entry.server.stream import GOING_AWAY, joined
from hostler.errors import Invalid, NotFound, Unauthenticated, Unavailable
from hostler.kit.clock import SystemClock
from hostler.kit.host import WILDCARDS
from hostler.kit.source_address import origin
from hostler.model.name import fold
from hostler.ports.machines import Door

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from hostler.engine.tickets import PeerTickets
    from hostler.kit.clock import Clock
    from hostler.ports.peers import NodeChannels
    from hostler.settings import Settings

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
        node, vm, door = _asked_for(raw.scope)
        if raw.scope["type"] != "websocket":
            raise Refusal(INVALID, "relay: only WebSocket (version 13) is supported; request an upgrade to websocket")
        await self._redeem(raw, node, vm, door)
        machines = self._machines_of(node)
        if machines is None:
            raise Unavailable(
                f"node {node}: its agent does not run here, or has not started yet; read its record again"
            )
        if self.streams >= self._most or self._closing.is_set():
            raise Unavailable("relay: too many streams, or shutting down; try again later")
        self.streams += 1
        try:
            async with machines.channel(vm, door) as channel:
                await raw.send({"type": "websocket.accept"})
                await joined(raw, channel, self._over())
        finally:
            self.streams -= 1

    async def _redeem(self, raw: Raw, node: str, vm: str, door: Door) -> None:
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
            await self._tickets.redeem(ticket, node, vm, door)
        except Unauthenticated:  # only failures count: many valid tickets may arrive at once
            self._guesses.failed(source)
            raise
        connection = raw.scope.get("state", {}).get(CONNECTION)
        if connection is not None and not connection.prove(reserved=True):
            raise Unavailable("relay: too many connections; try again later")

    async def _over(self) -> int:
        await self._closing.wait()
        return GOING_AWAY


def _asked_for(scope: Any) -> tuple[str, str, Door]:
    segments = scope["raw_path"].decode("ascii", "replace").split("/")[1:]
    if scope.get("method", "GET") != "GET" or len(segments) != 4 or segments[0] != "relay":
        raise Refusal(NOT_FOUND, "relay: path not found; this is not the API, ask a replica")
    node, vm, door = incoming.path_parts(segments[1:])
    if door not in set(Door):
        raise NotFound(f"door {door[:40]!r}: unknown channel; use one of those in the API reference")
    return fold(node), vm, Door(door)


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
    cert, key, limits = settings.tls_cert, settings.tls_key, relay_limits(settings)
    async with Server(app, host=host, port=port, cert=cert, key=key, limits=limits) as server:
        yield Relay(server)
