"""Parser for Server-Sent Events, as the HTML standard defines them, from bytes that arrive in pieces."""

from __future__ import annotations

import re

import msgspec

from hostler.errors import Unavailable

MOST = 16 * 1024 * 1024
"""The largest message in bytes: more than the largest record."""
_END = re.compile(rb"\r\n|\n|\r(?!\Z)")
"""A carriage return at the very end may be the first half of a line end."""


class Message(msgspec.Struct, frozen=True):
    """One block. `id`: where to resume; None if the block has none. A block without `data` only moves that place."""

    event: str
    data: bytes
    id: str | None


class Parser:
    """Takes bytes and returns the complete messages."""

    def __init__(self) -> None:
        self._buffer = b""
        self._begun = False
        self._fields: list[tuple[bytes, bytes]] = []
        self._size = 0

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that `data` completes. Unavailable: the data is not an event stream."""
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
            raise Unavailable("events: a message is too large for Hostler; check the url")
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
