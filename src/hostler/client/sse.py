"""Server-Sent Events, as the HTML standard writes them, out of bytes that come in pieces."""

from __future__ import annotations

import re

import msgspec

from hostler.errors import Unavailable

MOST = 16 * 1024 * 1024
"""Bytes of one message: more than the largest record."""
_END = re.compile(rb"\r\n|\n|\r(?!\Z)")
"""A return at the very end may be the first half of a line's end."""


class Message(msgspec.Struct, frozen=True):
    """One block. `id`: where to resume, None if it says nothing of that; without `data` it only moves that place."""

    event: str
    data: bytes
    id: str | None


class Parser:
    """Feed it bytes; it gives the messages that are complete."""

    def __init__(self) -> None:
        self._buffer = b""
        self._begun = False
        self._fields: list[tuple[bytes, bytes]] = []
        self._size = 0

    def feed(self, data: bytes) -> list[Message]:
        """The messages that `data` completes. Unavailable: what comes is no stream of events."""
        looked_at = max(0, len(self._buffer) - 1)
        buffer = self._buffer + data
        if not self._begun and len(buffer) >= 3:
            buffer, looked_at, self._begun = buffer.removeprefix(b"\xef\xbb\xbf"), 0, True
        found: list[Message] = []
        start = 0
        for end in _END.finditer(buffer, looked_at):
            self._line(buffer[start : end.start()], found)
            start = end.end()
        self._buffer = buffer[start:]
        if self._size + len(self._buffer) > MOST:
            raise Unavailable("events: a message is larger than any of Hostler's; check the url")
        return found

    def _line(self, line: bytes, found: list[Message]) -> None:
        if line:
            if not line.startswith(b":"):
                name, _, value = line.partition(b":")
                self._fields.append((name, value.removeprefix(b" ")))
                self._size += len(line)
            return
        fields, self._fields, self._size = self._fields, [], 0
        if fields:
            found.append(_message(fields))


def _message(fields: list[tuple[bytes, bytes]]) -> Message:
    data = b"\n".join(value for name, value in fields if name == b"data")
    event = next((value for name, value in reversed(fields) if name == b"event"), b"message")
    where = next((value for name, value in reversed(fields) if name == b"id" and b"\0" not in value), None)
    return Message(event.decode(errors="replace"), data, None if where is None else where.decode(errors="replace"))
