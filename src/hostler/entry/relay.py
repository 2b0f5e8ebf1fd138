"""What an agent serves to other processes of its control plane: the doors of its machines, as WebSockets.

    GET /relay/{node}/{vm}/{door}        Authorization: Ticket …

One door, `slice-log`, is of a slice: an artifact stands in the machine's place.

Who comes has a ticket in the store, for this very door, and so can write to the store: it is one of us. Every ticket
counts once.
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
    from hostler.ports.peers import Doors
    from hostler.settings import Settings

MOST = 1000
"""Streams at once."""
GUESSES = 20
"""Wrong tickets of one address that are answered at once; each further try waits twice as long as the last."""


class RelayApp:
    """The ASGI app. `machines_of` knows the doors of this process's nodes, by their folded names."""

    def __init__(
        self,
        tickets: PeerTickets,
        machines_of: Callable[[str], Doors | None],
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
        """Nothing has to be there before the first request."""

    def close(self) -> None:
        """Let every stream end."""
        self._closing.set()

    async def aclose(self) -> None:
        """Nothing is left."""
        self.close()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        raw = Raw(scope, receive, send, dict(scope["headers"]))
        try:
            await self._serve(raw)
        except Exception as error:  # noqa: BLE001 - whatever it was, it is answered
            told = tell(error)
            if told.problem.status == 500:
                self._log.error("relay failed", path=scope["path"][:500], exc_info=error)
            await refuse(raw, told, unread=scope["type"] == "http" and incoming.announced(raw.headers))

    # Inside

    async def _serve(self, raw: Raw) -> None:
        node, vm, door = _asked_for(raw.scope)
        if raw.scope["type"] != "websocket":
            raise Refusal(INVALID, "relay: it speaks WebSocket (version 13) only; ask for an upgrade to websocket")
        await self._redeem(raw, node, vm, door)
        machines = self._machines_of(node)
        if machines is None:
            raise Unavailable(f"node {node}: its agent is not here, or not yet; read its record again")
        if self.streams >= self._most or self._closing.is_set():
            raise Unavailable("relay: no more are taken now; try again later")
        self.streams += 1
        try:
            async with machines.channel(vm, door) as channel:
                await raw.send({"type": "websocket.accept"})
                await joined(raw, channel, self._over())
        finally:
            self.streams -= 1

    async def _redeem(self, raw: Raw, node: str, vm: str, door: Door) -> None:
        """Take the ticket. TooManyTries: the address has guessed too often for the store to be asked again.

        A guest may come from the address of its node. So tickets that one of us has sealed are not slowed.
        """
        client = raw.scope.get("client")
        source = origin(client[0]) if client else ""
        try:
            ticket = _ticket_of(raw.headers)
            if not await self._tickets.seals.fits(ticket):
                self._guesses.check(source)
            await self._tickets.redeem(ticket, node, vm, door)
        except Unauthenticated:  # not counted before: many valid tickets may come at once
            self._guesses.failed(source)
            raise
        connection = raw.scope.get("state", {}).get(CONNECTION)
        if connection is not None and not connection.prove(reserved=True):
            raise Unavailable("relay: all places for connections are taken; try again later")

    async def _over(self) -> int:
        await self._closing.wait()
        return GOING_AWAY


def _asked_for(scope: Any) -> tuple[str, str, Door]:
    segments = scope["raw_path"].decode("ascii", "replace").split("/")[1:]
    if scope.get("method", "GET") != "GET" or len(segments) != 4 or segments[0] != "relay":
        raise Refusal(NOT_FOUND, "relay: there is no such path; this is no API, ask a replica")
    node, vm, door = incoming.path_parts(segments[1:])
    if door not in set(Door):
        raise NotFound(f"door {door[:40]!r}: no machine has one of this name; see what there is")
    return fold(node), vm, Door(door)


def _ticket_of(headers: dict[bytes, bytes]) -> str:
    scheme, _, ticket = headers.get(b"authorization", b"").partition(b" ")
    if scheme.decode("latin-1").lower() != SCHEME.lower() or not ticket.isascii():
        raise Unauthenticated("ticket: none was sent; only processes of this control plane are let in")
    return ticket.decode().strip()


class Relay:
    """A relay that is served."""

    def __init__(self, server: Server) -> None:
        self._server = server

    @property
    def address(self) -> str:
        """What the node's record says: where it is, and which certificate it has."""
        return self._server.pinned_url

    def reload_certificate(self) -> bool:
        """As `Server.reload_certificate`. The address is another one afterwards, if the certificate is."""
        return self._server.reload_certificate()


@asynccontextmanager
async def relaying(
    settings: Settings, tickets: PeerTickets, machines_of: Callable[[str], Doors | None]
) -> AsyncIterator[Relay]:
    """Serve the relay where the settings say. Invalid: others could not reach it there."""
    from hostler.entry.control_plane import check_address

    host, port = check_address(settings, settings.agent_listen, "agent_listen")
    if host in WILDCARDS:
        raise Invalid(
            f"agent_listen {settings.agent_listen}: others are told to come there; name the address by which they reach"
            " this machine"
        )
    app = RelayApp(tickets, machines_of)
    cert, key, limits = settings.tls_cert, settings.tls_key, relay_limits(settings)
    async with Server(app, host=host, port=port, cert=cert, key=key, limits=limits) as server:
        yield Relay(server)
