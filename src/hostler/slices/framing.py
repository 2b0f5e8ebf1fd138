"""Length-prefixed frames on a connection: split on arrival, and written in batches."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING

from hostler.kit.frames import MAX_FRAME

if TYPE_CHECKING:
    from collections.abc import Callable

_LENGTH = struct.Struct(">I")
HIGH = 1024 * 1024
"""Bytes in the write buffer from which senders have to wait."""


class Framed(asyncio.Protocol):
    """One connection. Subclasses handle messages in `heard` and the end in `lost`."""

    def __init__(self) -> None:
        self.limit = MAX_FRAME
        """The largest message in bytes; a longer one aborts the connection."""
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
        """Handle a message."""

    def opened(self) -> None:
        """Handle that the connection is open."""

    def lost(self) -> None:
        """Handle that the connection has ended."""

    # Callbacks of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self.opened()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the signature of asyncio
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

    # Operations

    def send(self, payload: bytes) -> None:
        """Queue a message; queued messages are written together. It must not exceed the largest frame."""
        if self._transport is None:
            return
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(_LENGTH.pack(len(payload)))
        self._out.append(payload)
        self._queued += len(payload)

    async def room(self) -> None:
        """Wait until more can be sent; return at once if the connection has ended."""
        if self._queued > HIGH:
            self._flush()
        while self._is_paused and self._transport is not None:
            if self._room is None:
                self._room = asyncio.Event()
            self._room.clear()
            await self._room.wait()

    def listen(self, *, on: bool) -> None:
        """Resume or pause reading."""
        if self._transport is not None:
            (self._transport.resume_reading if on else self._transport.pause_reading)()

    def close(self) -> None:
        """Close the connection after everything queued is written."""
        self._flush()
        if self._transport is not None:
            self._transport.close()
            self._gone()

    def cut(self) -> None:
        """Abort the connection now."""
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
    """Call `call_later` with seconds that come from a peer, limited to what it accepts."""
    return loop.call_later(min(seconds, 1e8), do)
