"""uvicorn inside the loop that is there already: no signals taken, the port known, closed in time."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import time
from contextlib import suppress
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, Self
from typing import Protocol as Shape

import uvicorn

from hostler.entry.server.protocol import Protocol, WebSocket
from hostler.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

GRACE = 3
"""Seconds that running requests have when the server closes."""
KEEP_ALIVE = 75
BACKLOG = 2048
MAX_MESSAGE = 1024 * 1024
"""Bytes of one message on a stream."""
PING_EVERY = 20.0
"""Seconds between two signs of life on a stream, and for the answer to one."""


class Served(Shape):
    """An ASGI app with a beginning and an end: `start` before the first request, `close` to let streams end."""

    async def start(self) -> None: ...

    def close(self) -> None: ...

    async def aclose(self) -> None: ...

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...


class _Dated(uvicorn.Server):
    """uvicorn, every answer of which says what time it is by `wall`: a page reckons with that, not with its own."""

    def __init__(self, config: uvicorn.Config, wall: Callable[[], float], rate: Callable[[], float] | None) -> None:
        super().__init__(config)
        self._wall, self._rate = wall, rate
        self._date: tuple[tuple[bytes, bytes], ...] = ()

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        ended = await super().on_tick(counter)
        with suppress(ValueError, OverflowError, OSError):  # no date is beyond the year 9999; a simulation may be
            self._date = ((b"date", formatdate(self._wall(), usegmt=True).encode()),)
        headers = [*self._date]
        if self._rate is not None:
            headers.append((b"hostler-rate", b"%g" % self._rate()))
        self.server_state.default_headers = headers
        return ended


class Server:
    """An async context manager: serves from entering to leaving. `port=0` takes a free one.

    `wall`: what time it is, as its answers say; `rate`: how many seconds of it pass in a real one, where that is not
    always one. Unavailable on entering: the address cannot be had. Invalid: certificate or key cannot be used.
    """

    def __init__(
        self,
        app: Served,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        cert: Path | None = None,
        key: Path | None = None,
        wall: Callable[[], float] = time.time,
        rate: Callable[[], float] | None = None,
    ) -> None:
        if (cert is None) != (key is None):
            raise Invalid("tls: a certificate and its key go together; give both")
        self._app, self._host, self._asked_port = app, host, port
        self._cert, self._key = cert, key
        self._config = uvicorn.Config(
            app,
            http=Protocol,
            ws=WebSocket,
            ws_max_size=MAX_MESSAGE,
            ws_ping_interval=PING_EVERY,
            ws_ping_timeout=PING_EVERY,
            ws_per_message_deflate=False,
            loop="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=GRACE,
            backlog=BACKLOG,
        )
        self._server = _Dated(self._config, wall, rate)
        self._socket: socket.socket | None = None
        self._serving: asyncio.Task[None] | None = None
        self.port = port
        """The real one, once it serves."""

    @property
    def url(self) -> str:
        """Where it serves."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'http' if self._cert is None else 'https'}://{host}:{self.port}"

    async def __aenter__(self) -> Self:
        self._config.load()
        self._config.ssl = self._tls()
        self._socket = self._bound()
        self.port = self._socket.getsockname()[1]
        await self._app.start()
        # What uvicorn's own `serve` does, without its signal handlers: those of the process are not the server's.
        self._server.lifespan = self._config.lifespan_class(self._config)
        await self._server.on_tick(0)  # the first answer says what time it is, too
        await self._server.startup(sockets=[self._socket])
        self._serving = asyncio.create_task(self._server.main_loop(), name="server")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._app.close()
        self._server.should_exit = True
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait((self._serving,))
        if self._socket is not None:
            await self._server.shutdown(sockets=[self._socket])
            await self._abort()
        await self._app.aclose()

    # Inside

    async def _abort(self) -> None:
        """Connections of callers that do not read, and tasks that were cancelled."""
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
        tasks = set(self._server.server_state.tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)

    def _bound(self) -> socket.socket:
        where = f"{self._host}:{self._asked_port}"
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                self._host, self._asked_port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listener = socket.socket(family, kind, protocol)
        except OSError as problem:
            raise Unavailable(f"listen {where}: {problem.strerror or problem}; name another address") from None
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
            listener.setblocking(False)
        except OSError as problem:
            listener.close()
            if problem.errno == errno.EADDRINUSE:
                raise Unavailable(f"listen {where}: the port is in use; stop who uses it, or take another") from None
            raise Unavailable(f"listen {where}: {problem.strerror}; name another address") from None
        return listener

    def _tls(self) -> ssl.SSLContext | None:
        if self._cert is None or self._key is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self._cert, self._key, password="")
        except (OSError, ssl.SSLError) as problem:
            why = problem.strerror or problem
            raise Invalid(f"tls: {self._cert} and {self._key} cannot be used: {why}; name others") from None
        return context
