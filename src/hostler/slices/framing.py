"""Frames on a connection: taken apart as they come, and written together as they are made."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING

from hostler.kit.frames import MAX_FRAME

if TYPE_CHECKING:
    from collections.abc import Callable

_LENGTH = struct.Struct(">I")
HIGH = 1024 * 1024
"""Bytes that may wait to be written before who makes more of them has to wait."""


class Framed(asyncio.Protocol):
    """One connection. Whoever is it says in `heard` what a message means, and in `lost` what its end means."""

    def __init__(self) -> None:
        self.limit = MAX_FRAME
        """Bytes that a message may have; more, and the connection is cut."""
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._out: list[bytes] = []
        self._queued = 0
        self._is_paused = False
        self._room: asyncio.Event | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    def heard(self, payload: bytes) -> None:
        """A message came."""

    def opened(self) -> None:
        """It is connected."""

    def lost(self) -> None:
        """It has ended."""

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self.opened()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - as asyncio calls it
        self._gone()

    def data_received(self, data: bytes) -> None:
        held = self._buffer
        found: bytes | bytearray = data
        if held:
            held += data
            found = held
        at, size = 0, len(found)
        while size - at >= 4 and self._transport is not None:
            (length,) = _LENGTH.unpack_from(found, at)
            if length > self.limit:
                self.cut()
                return
            end = at + 4 + length
            if end > size:
                break
            self.heard(bytes(found[at + 4 : end]))
            at = end
        if found is held:
            del held[:at]
        elif at < size:
            held += found[at:]

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._room is not None:
            self._room.set()

    # What is done with it

    def send(self, payload: bytes) -> None:
        """Write a message, soon, and together with others. It must not be too long."""
        if self._transport is None:
            return
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(_LENGTH.pack(len(payload)))
        self._out.append(payload)
        self._queued += len(payload)

    async def room(self) -> None:
        """Until more can be sent; at once if there is no connection any more."""
        if self._queued > HIGH:
            self._flush()
        while self._is_paused and self._transport is not None:
            if self._room is None:
                self._room = asyncio.Event()
            self._room.clear()
            await self._room.wait()

    def listen(self, *, on: bool) -> None:
        """Hear nothing more for a while; or go on."""
        if self._transport is not None:
            (self._transport.resume_reading if on else self._transport.pause_reading)()

    def close(self) -> None:
        """End it after what was sent."""
        self._flush()
        if self._transport is not None:
            self._transport.close()
            self._gone()

    def cut(self) -> None:
        """End it now."""
        if self._transport is not None:
            self._transport.abort()
            self._gone()

    def _flush(self) -> None:
        out = self._out
        if out and self._transport is not None:
            self._out, self._queued = [], 0
            self._transport.write(b"".join(out))

    def _gone(self) -> None:
        if self._transport is None:
            return
        self._transport = None
        self._out.clear()
        self._buffer = bytearray()
        if self._room is not None:
            self._room.set()
        self.lost()


def later(loop: asyncio.AbstractEventLoop, seconds: float, do: Callable[[], None]) -> asyncio.TimerHandle:
    """`call_later`, for seconds that somebody else named."""
    return loop.call_later(min(seconds, 1e8), do)
