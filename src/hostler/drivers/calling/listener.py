"""The socket on which a router reports its measurements, and the client for it. Clients show the token of a router."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import msgspec

from hostler.errors import Unavailable
from hostler.kit.connections import AcceptLoop, address_of, limits_of, listen, open_file_limit
from hostler.kit.frames import FrameError, frame, read_frame
from hostler.ports.calls import Ask, CallFailed, Denied, Hello, Told, Unreachable, Welcome

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from types import TracebackType

    from hostler.kit.connections import InboundConnection
    from hostler.ports.calls import Message

HELLO_WITHIN = 10.0
MAX_ASKED = 4096
"""Maximum size of a query."""
ANSWER_WITHIN = 2.0
MAX_CONNECTIONS = 1024
_asked = msgspec.msgpack.Decoder(Hello | Ask).decode
_told = msgspec.msgpack.Decoder(Welcome | Denied | Told).decode
_encode = msgspec.msgpack.Encoder().encode


class Listener:
    """An async context manager that answers queries. Unavailable on entering: no port is available."""

    def __init__(self, host: str, told: Callable[[int], Told], admitted: Callable[[str], bool]) -> None:
        """`told`: returns the measurements after a second. `admitted`: whether a token with this SHA-256 may query."""
        self._host, self._tell, self._admitted = host, told, admitted
        self._listener: socket.socket | None = None
        self._accepting: AcceptLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.address = ""
        """`host:port`, once it is open."""

    async def __aenter__(self) -> Self:
        try:
            self._listener = listen(self._host)
        except OSError as error:
            raise Unavailable(f"listen {self._host}: {error.strerror or error}; name another address") from None
        limits = limits_of(MAX_CONNECTIONS, MAX_CONNECTIONS).within(open_file_limit() // 8)
        self._accepting = AcceptLoop(self._listener, self._protocol, limits)
        self._accepting.start()
        self.address = address_of(self._listener, self._host)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._accepting is not None and self._listener is not None:
            self._accepting.close()
            self._listener.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _protocol(self, inbound: InboundConnection) -> asyncio.StreamReaderProtocol:
        def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # A task made here: asyncio logs an error when a task that it made is cancelled.
            task = asyncio.create_task(self._serve(inbound, reader, writer), name="measures: asked")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), begin)

    async def _serve(
        self, inbound: InboundConnection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            async with asyncio.timeout(HELLO_WITHIN):
                first = await read_frame(reader, limit=MAX_ASKED)
            hello = None if first is None else _asked(first)
            if not isinstance(hello, Hello) or not self._admitted(hashlib.sha256(hello.token.encode()).hexdigest()):
                _say(writer, Denied("only routers of the same cluster may query"))
                return
            if not inbound.prove():
                _say(writer, Denied("too many connections to this router"))
                return
            _say(writer, Welcome("", 0))
            while (message := await read_frame(reader, limit=MAX_ASKED)) is not None:
                question = _asked(message)
                if isinstance(question, Ask):
                    _say(writer, self._tell(question.after))
                    await writer.drain()
        except (OSError, TimeoutError, FrameError, msgspec.MsgspecError, UnicodeError, RecursionError):
            pass  # the client does not speak the protocol, or is gone
        finally:
            with suppress(OSError):
                writer.close()


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer


class TcpQuestions:
    """`hostler.ports.calls.Questions` over TCP, with one persistent connection per router."""

    def __init__(self, token: str, *, within: float = ANSWER_WITHIN) -> None:
        self._hello, self._within = Hello(token, "leader"), within
        self._connections: dict[str, _Connection] = {}

    async def ask(self, address: str, question: Ask) -> Told:
        """Implement `Questions.ask`; one query at a time to an address."""
        connection = self._connections.pop(address, None)
        try:
            async with asyncio.timeout(self._within):
                if connection is None:
                    connection = await self._connect_to(address)
                _say(connection.writer, question)
                message = await read_frame(connection.reader)
                told = None if message is None else _told(message)
        except (OSError, TimeoutError, FrameError, msgspec.MsgspecError, ValueError, RecursionError) as error:
            if connection is not None:
                connection.writer.close()
            raise Unreachable(f"router {address}: {error or 'no answer in time'}") from None
        except BaseException:
            if connection is not None:
                connection.writer.close()
            raise
        if not isinstance(told, Told):
            connection.writer.close()
            raise Unreachable(f"router {address}: {told.why if isinstance(told, Denied) else 'the connection ended'}")
        self._connections[address] = connection
        return told

    async def aclose(self) -> None:
        """Close all connections."""
        connections = list(self._connections.values())
        self._connections.clear()
        for connection in connections:
            connection.writer.close()
        for connection in connections:
            with suppress(OSError):
                await connection.writer.wait_closed()

    async def _connect_to(self, address: str) -> _Connection:
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        try:
            _say(writer, self._hello)
            message = await read_frame(reader)
            welcome = None if message is None else _told(message)
            if not isinstance(welcome, Welcome):
                why = welcome.why if isinstance(welcome, Denied) else "no welcome"
                raise CallFailed(None, f"router {address}: {why}", started=False)
        except BaseException:
            writer.close()
            raise
        return _Connection(reader, writer)


def _say(writer: asyncio.StreamWriter, message: Message) -> None:
    writer.write(frame(_encode(message)))
