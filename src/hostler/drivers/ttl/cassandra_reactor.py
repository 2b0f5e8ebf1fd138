"""Handles the I/O of one Cassandra client in a thread that ends with it.

The client's own reactors share one thread among all clients of the process, and that thread never ends.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from cassandra.connection import Connection, ConnectionShutdown

if TYPE_CHECKING:
    from collections.abc import Callable


class Reactor:
    """An event loop in a thread, and the connections on it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cassandra: reactor", daemon=True)
        self._thread.start()
        self.connection_class: type[ReactorConnection] = type(
            "BoundConnection", (ReactorConnection,), {"loop": self._loop}
        )

    def close(self) -> None:
        """End the thread, once every connection is closed."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(asyncio.sleep(0))  # run the last callbacks of aborted connections
        self._loop.close()


class Timer:
    """Calls back once, unless it is cancelled before. Created and cancelled in any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, after: float, callback: Callable[[], None]) -> None:
        self._loop, self._callback = loop, callback
        self._handle: asyncio.TimerHandle | None = None
        self._cancelled = False
        with suppress(RuntimeError):  # the loop is closed, and the timed operation has ended
            loop.call_soon_threadsafe(self._start, after)

    def _start(self, after: float) -> None:
        if not self._cancelled:
            self._handle = self._loop.call_later(after, self._callback)

    def cancel(self) -> None:
        self._cancelled = True
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()


class ReactorConnection(Connection):  # type: ignore[misc]  # the client has no types
    """The connection class for the client: created in one of its threads, which may block; used from any."""

    loop: ClassVar[asyncio.AbstractEventLoop]
    is_closed: bool

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._connect_socket()
        self._socket.setblocking(False)
        attached = asyncio.run_coroutine_threadsafe(
            self.loop.create_connection(lambda: _Wire(self), sock=self._socket), self.loop
        )
        self._transport, _ = attached.result()
        self._send_options_message()

    @classmethod
    def create_timer(cls, timeout: float, callback: Callable[[], None]) -> Timer:
        return Timer(cls.loop, timeout, callback)

    def push(self, data: bytes) -> None:
        try:
            self.loop.call_soon_threadsafe(self._transport.write, data)
        except RuntimeError:
            raise ConnectionShutdown("the client is closed") from None

    def close(self) -> None:
        with self.lock:
            if self.is_closed:
                return
            self.is_closed = True
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._transport.abort)
        if not self.is_defunct:
            self.error_all_requests(ConnectionShutdown(f"connection to {self.endpoint} was closed"))
            self.connected_event.set()


class _Wire(asyncio.Protocol):
    """Passes data from the socket to the client's buffer."""

    def __init__(self, connection: ReactorConnection) -> None:
        self._connection = connection

    def data_received(self, data: bytes) -> None:
        self._connection._iobuf.write(data)
        self._connection.process_io_buffer()

    def connection_lost(self, error: Exception | None) -> None:
        self._connection.defunct(error or ConnectionShutdown(f"{self._connection.endpoint} closed the connection"))
