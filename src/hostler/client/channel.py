"""Bytes in both directions over a WebSocket: a machine's serial port, its SSH server, or another process."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Self

import aiohttp

from hostler.errors import Closed, HostlerError, Unauthenticated, Unavailable, Uncertain

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

CHUNK = 64 * 1024
"""The size of one message in bytes; the server takes no more than 1 MiB."""
AHEAD = 16
"""Messages that are read ahead, so that heartbeats are answered even if the caller only writes."""
NORMAL, NO_LONGER = 1000, 1008
_ENDS = (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)


class Channel:
    """An async context manager: `async with client.vms.console("acme", "web", "www") as console`.

    On entering: NotFound if there is no such machine, or it is off; Unavailable if it cannot be reached now.
    """

    def __init__(
        self, what: str, connect: Callable[[], AbstractAsyncContextManager[aiohttp.ClientWebSocketResponse]]
    ) -> None:
        self._what, self._connect = what, connect
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._stack = AsyncExitStack()
        self._heard: asyncio.Queue[bytes | HostlerError] = asyncio.Queue(AHEAD)
        self._end: bytes | HostlerError | None = None

    async def __aenter__(self) -> Self:
        try:
            self._socket = await self._stack.enter_async_context(self._connect())
        except Uncertain as error:  # opening a channel writes nothing
            raise Unavailable(str(error)) from None
        self._heard, self._end = asyncio.Queue(AHEAD), None
        hearing = asyncio.create_task(self._hear(self._socket), name=f"{self._what}: hearing")
        self._stack.push_async_callback(_ended, hearing)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket = None
        await self._stack.aclose()

    async def read(self) -> bytes:
        """Return the next bytes; empty once the machine's side has ended.

        Unauthenticated: the token is no longer valid. Unavailable: the connection is lost, or the server closes.
        """
        self._open()
        if self._end is None:
            found = await self._heard.get()
            if isinstance(found, bytes) and found:
                return found
            self._end = found
        if isinstance(self._end, HostlerError):
            raise self._end
        return b""

    async def write(self, data: bytes) -> None:
        """Send; wait while the other side does not read. Unavailable: the connection has ended."""
        socket = self._open()
        for start in range(0, len(data), CHUNK):
            try:
                await socket.send_bytes(data[start : start + CHUNK])
            except (aiohttp.ClientError, OSError, RuntimeError):
                raise self._lost(socket) from None

    # Private

    async def _hear(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            message = await socket.receive()
            if message.type is aiohttp.WSMsgType.BINARY and message.data:
                await self._heard.put(bytes(message.data))
            elif message.type in _ENDS:
                await self._heard.put(b"" if socket.close_code == NORMAL else self._lost(socket))
                return

    def _open(self) -> aiohttp.ClientWebSocketResponse:
        if self._socket is None:
            raise Closed(f"{self._what}: not open; use it inside `async with`")
        return self._socket

    def _lost(self, socket: aiohttp.ClientWebSocketResponse) -> HostlerError:
        if socket.close_code == NO_LONGER:
            return Unauthenticated(f"{self._what}: the token is no longer valid; log in again, or use another token")
        return Unavailable(f"{self._what}: the connection has ended; open it again")


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError, aiohttp.ClientError, OSError):
        await task
