"""`client.events()`: changes as they happen, over Server-Sent Events."""

from __future__ import annotations

import asyncio
import random
import re
from collections import deque
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self

import aiohttp
import msgspec

from hostler.errors import Invalid, TooManyTries, Unavailable, Uncertain
from hostler.kit.rate_limit import Backoff
from hostler.kit.tasks import Closing
from hostler.model.control_api import EventView

if TYPE_CHECKING:
    from hostler.client.transport import HttpTransport, Query


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


RESET = "reset"
"""The type of an event that reports lost events: list again; everything after `revision` follows."""


class _Reset(msgspec.Struct):
    revision: int = 0


class Events(Closing):
    """An endless iterator of events. Use `async with` if you leave it early.

    After a lost connection the stream reconnects; with `Last-Event-ID` no event is missed and none comes twice. It ends
    only by an error: the server refuses at once, or cannot be reached for longer than `patience` seconds (None: it
    waits without a limit, once it was connected).
    """

    def __init__(self, wire: HttpTransport, query: Query, *, after: str | None, patience: float | None) -> None:
        self._wire, self._query, self._patience = wire, query, patience
        self.last_id = after
        """The id of the last event that was returned: give it as `after` to continue from here later."""
        self._received = after
        self.connected = asyncio.Event()
        """Set while the stream is open: every change from then on is delivered."""
        self._was_connected = False
        self._open: AsyncExitStack | None = None
        self._content: aiohttp.StreamReader | None = None
        self._parser = Parser()
        self._waiting: deque[tuple[str | None, EventView | None]] = deque()  # None: only the position moves
        self._backoff = Backoff(0.1, 5.0, rng=random.Random())  # noqa: S311 - spreads retries; guards nothing

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EventView:
        while True:
            while not self._waiting:
                if self._content is None:
                    await self._connect()
                await self._receive()
            where, view = self._waiting.popleft()
            if where is not None:
                self.last_id = where
            if view is not None:
                return view

    async def aclose(self) -> None:
        """Close the connection."""
        self.connected.clear()
        stack, self._open, self._content = self._open, None, None
        if stack is not None:
            await stack.aclose()

    # Private

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        began, tries = loop.time(), 0
        while True:
            tries += 1
            try:
                return await self._connected()
            except (Unavailable, Uncertain) as error:
                if self._given_up(loop.time() - began, tries):
                    raise Unavailable(str(error)) from None
                pause = error.after if isinstance(error, TooManyTries) else self._backoff.next()
            await asyncio.sleep(pause)

    def _given_up(self, waited: float, tries: int) -> bool:
        if not self._was_connected:
            return tries > self._wire.retries
        return self._patience is not None and waited >= self._patience

    async def _connected(self) -> None:
        headers = {"Accept": "text/event-stream"}
        if self._received is not None:
            headers["Last-Event-ID"] = self._received
        stack = AsyncExitStack()
        try:
            content = await stack.enter_async_context(
                self._wire.stream(self._wire.address.to("events", query=self._query), headers)
            )
        except BaseException:
            await stack.aclose()
            raise
        self._open, self._content, self._parser = stack, content, Parser()
        self._was_connected = True

    async def _receive(self) -> None:
        """Receive the next bytes; close a connection that has ended."""
        assert self._content is not None  # noqa: S101 - connected just before
        try:
            data = await self._content.readany()
        except (aiohttp.ClientError, TimeoutError, OSError):
            data = b""
        if not data:
            await self.aclose()
            await asyncio.sleep(self._backoff.next())
            return
        for message in self._parser.feed(data):
            self._take(message)

    def _take(self, message: Message) -> None:
        self._waiting.append((message.id, _event(message) if message.data else None))
        if message.data:
            self._backoff.reset()
        if message.id is not None:
            # Events that wait here were received: they are returned before anything after the resume position.
            self._received = message.id
            self.connected.set()


def _event(message: Message) -> EventView:
    try:
        if message.event == RESET:
            revision = msgspec.json.decode(message.data, type=_Reset).revision
            return EventView(type=RESET, of="", subject="", revision=revision, record=None)
        return EventView.decode(message.data)
    except (msgspec.MsgspecError, UnicodeDecodeError, Invalid) as error:
        raise Unavailable(f"events: the data is not an event of Hostler ({error}); check the url") from None
