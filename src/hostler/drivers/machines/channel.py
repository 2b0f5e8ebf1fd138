"""Channels to a machine: to a port of it, and to the recorded output of its serial port."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from hostler.errors import Closed, Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from hostler.ports.machines import Channel


class MachineLog:
    """Channel that returns the result of `said` as of its entry, then ends. Input is discarded."""

    def __init__(self, said: Callable[[], bytes]) -> None:
        self._said, self._rest = said, b""

    async def __aenter__(self) -> Self:
        self._rest = self._said()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return

    async def read(self) -> bytes:
        data, self._rest = self._rest, b""
        return data

    async def write(self, data: bytes) -> None:
        del data


CHUNK = 64 * 1024
CONNECTS_WITHIN = 10.0


class PortChannels:
    """A channel that is resolved when it is entered."""

    def __init__(self, find: Callable[[], Awaitable[Channel]]) -> None:
        self._find = find
        self._channel: Channel | None = None

    async def __aenter__(self) -> Self:
        channel = await self._find()
        self._channel = await channel.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.__aexit__(kind, error, traceback)

    async def read(self) -> bytes:
        return await self._require_open().read()

    async def write(self, data: bytes) -> None:
        await self._require_open().write(data)

    def _require_open(self) -> Channel:
        if self._channel is None:
            raise Closed("channel: it is not open; enter it with `async with` first")
        return self._channel


class Connection:
    """A channel over a TCP connection."""

    def __init__(self, subject: str, host: str, port: int) -> None:
        self._subject, self._host, self._port = subject, host, port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Self:
        try:
            async with asyncio.timeout(CONNECTS_WITHIN):
                self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        except (OSError, TimeoutError) as error:
            raise Unavailable(f"{self._subject}: {self._host} port {self._port} does not answer: {error}") from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()

    async def read(self) -> bytes:
        assert self._reader is not None  # noqa: S101 - entered
        try:
            return await self._reader.read(CHUNK)
        except OSError:
            return b""

    async def write(self, data: bytes) -> None:
        assert self._writer is not None  # noqa: S101 - entered
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise Unavailable(f"{self._subject}: the connection is lost: {error}; open another one") from None
