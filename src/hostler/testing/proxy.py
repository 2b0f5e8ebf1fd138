"""A TCP proxy with injectable faults, between a client and a server on this machine."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

_CHUNK = 65_536


class FaultyProxy:
    """Forwards connections to `target` (`host:port`), with the configured faults.

    Each setting can be changed at any time and applies to every connection, old and new:

    - `delay`: seconds that each piece of data is delayed, in either direction
    - `swallow_answers`, `swallow_requests`: data from that side is read and discarded
    - `stalled`: nothing is forwarded in either direction, nothing is lost, connections stay open
    - `refusing`: new connections are closed at once
    - `cut_after`: after so many more bytes of answers, cut every connection, once
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self.delay = 0.0
        self.swallow_answers = False
        self.swallow_requests = False
        self.refusing = False
        self.cut_after: int | None = None
        self.answered = 0
        self.asked = 0
        """Bytes received from clients, forwarded or not."""
        self.accepted = 0
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        self.refusing = True  # also connections that are not accepted yet
        self.cut()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    @property
    def endpoint(self) -> str:
        """The address that clients connect to."""
        if self._server is None:
            raise RuntimeError("proxy: not started; use it inside `async with`")
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._writers) // 2

    @property
    def stalled(self) -> bool:
        """Whether nothing is forwarded."""
        return not self._flowing.is_set()

    @stalled.setter
    def stalled(self, value: bool) -> None:
        (self._flowing.clear if value else self._flowing.set)()

    def cut(self) -> None:
        """Reset every open connection, as a failing network does, without a shutdown to either side."""
        for writer in list(self._writers):
            _reset(writer)

    def heal(self) -> None:
        """Forward correctly from now on. A connection from which data was discarded is useless: cut it."""
        self.delay, self.refusing, self.cut_after, self.stalled = 0.0, False, None, False
        self.swallow_answers = self.swallow_requests = False

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            _reset(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            return
        self.accepted += 1
        onward_reader, onward_writer = await asyncio.open_connection(*self._target)
        self._writers |= {writer, onward_writer}
        pumps = [
            asyncio.create_task(self._pump(reader, onward_writer, answers=False)),
            asyncio.create_task(self._pump(onward_reader, writer, answers=True)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._writers -= {writer, onward_writer}
            _reset(onward_writer)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        while data := await reader.read(_CHUNK):
            self.asked += 0 if answers else len(data)
            await self._flowing.wait()
            if self.delay:
                await asyncio.sleep(self.delay)
            if self.swallow_answers if answers else self.swallow_requests:
                continue
            if answers and not self._within_limit(len(data)):
                self.cut()
                return
            writer.write(data)
            await writer.drain()
            self.answered += len(data) if answers else 0

    def _within_limit(self, size: int) -> bool:
        if self.cut_after is None:
            return True
        self.cut_after -= size
        if self.cut_after > 0:
            return True
        self.cut_after = None
        return False


def _reset(writer: asyncio.StreamWriter) -> None:
    sock: socket.socket | None = writer.get_extra_info("socket")
    if sock is not None and not writer.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
