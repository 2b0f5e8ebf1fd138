"""Messages over a byte stream: four bytes of length, then the message.

A peer that exceeds the limit is disconnected.
"""

from __future__ import annotations

import asyncio
import struct

MAX_FRAME = 16 * 1024 * 1024
_LENGTH = struct.Struct(">I")
_HEAD = _LENGTH.size


class FrameError(Exception):
    """The data is not a frame, or the frame is too long: the connection can no longer be used."""


def frame(payload: bytes) -> bytes:
    """Return the bytes that carry one message. FrameError: it is too long."""
    if len(payload) > MAX_FRAME:
        raise FrameError(f"message of {len(payload)} bytes: at most {MAX_FRAME} can be sent")
    return _LENGTH.pack(len(payload)) + payload


class Frames:
    """Splits incoming data into messages, for callers that receive data in pieces."""

    __slots__ = ("_limit", "_need", "_rest")

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self._limit = limit
        self._rest = bytearray()
        self._need = _HEAD

    @property
    def within(self) -> bool:
        """Whether an incomplete message is buffered."""
        return bool(self._rest)

    @property
    def held(self) -> int:
        """Bytes of the incomplete message."""
        return len(self._rest)

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that `data` completes. FrameError: a message is too long."""
        rest = self._rest
        if rest:
            rest += data
            if len(rest) < self._need:
                return []
            data = bytes(rest)
            self._rest = bytearray()
        found: list[bytes] = []
        at, end = 0, len(data)
        while end - at >= _HEAD:
            (length,) = _LENGTH.unpack_from(data, at)
            if length > self._limit:
                raise FrameError(f"message of {length} bytes: at most {self._limit} are accepted")
            if end - at < _HEAD + length:
                break
            at += _HEAD
            found.append(data[at : at + length])
            at += length
        if at < end:
            self._rest = bytearray(data[at:])
            self._need = _HEAD + _LENGTH.unpack_from(data, at)[0] if end - at >= _HEAD else _HEAD
        return found


async def read_frame(reader: asyncio.StreamReader, *, limit: int = MAX_FRAME) -> bytes | None:
    """Return the next message; None: the peer closed the connection between two messages."""
    try:
        head = await reader.readexactly(_HEAD)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise FrameError("the connection ended in the middle of a message") from None
        return None
    (length,) = _LENGTH.unpack(head)
    if length > limit:
        raise FrameError(f"message of {length} bytes: at most {limit} are accepted")
    try:
        return await reader.readexactly(length)
    except asyncio.IncompleteReadError:
        raise FrameError("the connection ended in the middle of a message") from None
