"""A machine's serial port, from afar."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self

import aiohttp

from hostler.errors import Closed, HostlerError, Unauthenticated, Unavailable, Uncertain

if TYPE_CHECKING:
    from types import TracebackType

    from yarl import URL

    from hostler.client.wire import Wire

CHUNK = 64 * 1024
"""Bytes of one message; the server takes no more than 1 MiB."""
NORMAL, NO_LONGER = 1000, 1008
_ENDS = (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.CLOSED)


class Console:
    """Bytes both ways, an async context manager: `async with client.vms.console("acme", "web", "www") as console`.

    On entering: NotFound if there is no such machine, or it is off; Unavailable if this server has no way to it.
    """

    def __init__(self, wire: Wire, url: URL) -> None:
        self._wire, self._url = wire, url
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            self._socket = await self._stack.enter_async_context(self._wire.socket(self._url))
        except Uncertain as error:  # opening a console writes nothing
            raise Unavailable(str(error)) from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket = None
        await self._stack.aclose()

    async def read(self) -> bytes:
        """The next output; empty once the machine is off. Unauthenticated: the token no longer counts.

        Unavailable: the connection is lost, or the server closes.
        """
        socket = self._open()
        while True:
            message = await socket.receive()
            if message.type is aiohttp.WSMsgType.BINARY and message.data:
                return bytes(message.data)
            if message.type in _ENDS or message.type is aiohttp.WSMsgType.ERROR:
                if socket.close_code == NORMAL:
                    return b""
                raise self._ended()

    async def write(self, data: bytes) -> None:
        """Type. Unavailable: the console has ended."""
        socket = self._open()
        for start in range(0, len(data), CHUNK):
            try:
                await socket.send_bytes(data[start : start + CHUNK])
            except (aiohttp.ClientError, OSError):
                raise self._ended() from None

    def _open(self) -> aiohttp.ClientWebSocketResponse:
        if self._socket is None:
            raise Closed("console: not open; use it inside `async with client.vms.console(…) as console`")
        return self._socket

    def _ended(self) -> HostlerError:
        if self._socket is not None and self._socket.close_code == NO_LONGER:
            return Unauthenticated("console: the token no longer counts; log in again, or take another token")
        return Unavailable("console: the connection has ended; open it again")
