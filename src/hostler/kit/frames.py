"""Messages over a byte stream: four bytes of length, then the message. Who sends more than was agreed is cut off."""

from __future__ import annotations

import asyncio
import struct

MAX_FRAME = 16 * 1024 * 1024
_LENGTH = struct.Struct(">I")
_HEAD = _LENGTH.size


class FrameError(Exception):
    """What came is no frame, or too long a one: the connection is of no more use."""


def frame(payload: bytes) -> bytes:
    """The bytes that carry one message. FrameError: it is too long."""
    if len(payload) > MAX_FRAME:
        raise FrameError(f"a message of {len(payload)} bytes: at most {MAX_FRAME} can be sent")
    return _LENGTH.pack(len(payload)) + payload


class Frames:
    """Messages out of bytes that come in pieces, for who is handed those and does not ask for them."""

    __slots__ = ("_limit", "_need", "_rest")

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self._limit = limit
        self._rest = bytearray()
        self._need = _HEAD

    @property
    def within(self) -> bool:
        """Whether a message has begun that is not complete."""
        return bool(self._rest)

    @property
    def held(self) -> int:
        """Bytes of it."""
        return len(self._rest)

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that `data` completes. FrameError: what comes is too long."""
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
                raise FrameError(f"a message of {length} bytes was announced: at most {self._limit} are taken")
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
    """The next message; None: the other side has ended, between two of them."""
    try:
        head = await reader.readexactly(_HEAD)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise FrameError("the connection ended within a message") from None
        return None
    (length,) = _LENGTH.unpack(head)
    if length > limit:
        raise FrameError(f"a message of {length} bytes was announced: at most {limit} are taken")
    try:
        return await reader.readexactly(length)
    except asyncio.IncompleteReadError:
        raise FrameError("the connection ended within a message") from None
