"""uvicorn in the running event loop: it handles no signals, reports its port, and closes in time."""

from __future__ import annotations

import asyncio
import errno
import ssl
import time
from contextlib import suppress
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from typing import Protocol as Shape

import uvicorn

from hostler.entry.server.authentication import Proxies
from hostler.entry.server.logs import logger
from hostler.entry.server.pin import pin_of
from hostler.entry.server.protocol import CONNECTION, Protocol, WebSocket
from hostler.errors import Invalid, Unavailable
from hostler.kit.connections import AcceptLoop, ConnectionLimits, listen

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    from hostler.kit.connections import InboundConnection

GRACE = 3
"""Seconds for running requests to end when the server closes."""
KEEP_ALIVE = 75
BACKLOG = 2048
MAX_MESSAGE = 1024 * 1024
"""Largest message on a stream in bytes."""
PING_EVERY = 20.0
"""Seconds between two pings on a stream, and for the answer to one."""


class Served(Shape):
    """An ASGI app with a lifecycle: `start` before the first request, `close` to end streams, then `aclose`."""

    async def start(self) -> None: ...

    def close(self) -> None: ...

    async def aclose(self) -> None: ...

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...


class _Dated(uvicorn.Server):
    """uvicorn with a Date header from `wall` in every answer: the web page uses it instead of the client's clock.

    Connections are accepted within limits, not by asyncio's own server.
    """

    def __init__(self, config: uvicorn.Config, wall: Callable[[], float], rate: Callable[[], float] | None) -> None:
        super().__init__(config)
        self._wall, self._rate = wall, rate
        self._date: tuple[tuple[bytes, bytes], ...] = ()

    def accept(self, listener: socket.socket, limits: ConnectionLimits, proxies: Proxies) -> AcceptLoop:
        """Serve a listening socket, as uvicorn's own `startup` does with `create_server`."""
        config, loop = self.config, asyncio.get_running_loop()

        def protocol(connection: InboundConnection) -> Protocol:
            state = {CONNECTION: connection}
            return Protocol(config=config, server_state=self.server_state, app_state=state, _loop=loop)

        log = logger(part="server")
        accepting = AcceptLoop(listener, protocol, limits, tls=config.ssl, exempt=proxies.trusts, tell=log.warning)
        self.servers = [accepting]  # type: ignore[list-item]
        accepting.start()
        self.started = True
        return accepting

    async def on_tick(self, counter: int) -> bool:
        """Update the default headers; called ten times a second."""
        ended = await super().on_tick(counter)
        with suppress(ValueError, OverflowError, OSError):  # a date cannot be beyond the year 9999; a simulation may be
            self._date = ((b"date", formatdate(self._wall(), usegmt=True).encode()),)
        headers = [*self._date]
        if self._rate is not None:
            headers.append((b"hostler-rate", b"%g" % self._rate()))
        self.server_state.default_headers = headers
        return ended


class ListenAddress(NamedTuple):
    """Where a server listens: `port=0` takes a free port. TLS needs the files of a certificate and of its key."""

    host: str = "127.0.0.1"
    port: int = 0
    cert: Path | None = None
    key: Path | None = None


class Server:
    """An async context manager that serves while it is open.

    `wall` is the time of the Date headers. `rate` is how many of its seconds pass in a real second, if that varies. On
    entering: Unavailable: the address cannot be bound. Invalid: certificate or key cannot be used.
    """

    def __init__(
        self,
        app: Served,
        address: ListenAddress | None = None,
        *,
        wall: Callable[[], float] = time.time,
        rate: Callable[[], float] | None = None,
        limits: ConnectionLimits | None = None,
        trusted_proxies: tuple[str, ...] = (),
    ) -> None:
        """`limits`: limits of connections. `trusted_proxies` are exempt from the limits per source address."""
        host, port, cert, key = address or ListenAddress()
        if (cert is None) != (key is None):
            raise Invalid("tls: needs both a certificate and its key; give both")
        self._app, self._host, self._asked_port = app, host, port
        self._cert, self._key = cert, key
        self._pin = ""
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
        self._limits, self._proxies = limits or ConnectionLimits(), Proxies(trusted_proxies)
        self.connections: AcceptLoop | None = None
        """The accept loop with the open connections, once it serves."""
        self._socket: socket.socket | None = None
        self._serving: asyncio.Task[None] | None = None
        self.port = port
        """The actual port, once it serves."""

    @property
    def url(self) -> str:
        """Return the URL."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'http' if self._cert is None else 'https'}://{host}:{self.port}"

    @property
    def pinned_url(self) -> str:
        """Return the URL with the digest of the certificate, as in the records of nodes and replicas."""
        return f"{self.url}{self._pin}"

    async def __aenter__(self) -> Self:
        self._config.load()
        self._config.ssl = self._tls()
        self._pin = pin_of(self._cert)
        self._socket = self._bind()
        self.port = self._socket.getsockname()[1]
        await self._app.start()
        # What uvicorn's own `serve` does, without its signal handlers: the process has its own.
        self._server.lifespan = self._config.lifespan_class(self._config)
        await self._server.on_tick(0)  # so that the first answer has a Date header too
        self.connections = self._server.accept(self._socket, self._limits, self._proxies)
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

    def reload_certificate(self) -> bool:
        """Use the current certificate files for new connections. Return False if this server has no certificate.

        Invalid: the files cannot be used; the previous certificate stays in use.
        """
        context = self._config.ssl
        if context is None or self._cert is None:
            return False
        self._tls()  # a mismatched pair must not replace the one in use
        context.load_cert_chain(self._cert, self._key, password="")
        self._pin = pin_of(self._cert)
        return True

    # Internal

    async def _abort(self) -> None:
        """Abort connections of clients that do not read, and wait for cancelled tasks."""
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
        tasks = set(self._server.server_state.tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)

    def _bind(self) -> socket.socket:
        where = f"{self._host}:{self._asked_port}"
        try:
            return listen(self._host, self._asked_port, backlog=BACKLOG)
        except OSError as problem:
            if problem.errno == errno.EADDRINUSE:
                raise Unavailable(
                    f"listen {where}: the port is in use; stop the program that uses it, or choose another port"
                ) from None
            raise Unavailable(f"listen {where}: {problem.strerror or problem}; name another address") from None

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
