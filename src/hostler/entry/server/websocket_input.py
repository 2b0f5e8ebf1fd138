"""What the caller of a WebSocket says, to a machine: JSON texts to a terminal or a shell
(`entry.terminal.protocol`), bytes through a door.

A little is read ahead of what the machine takes: so it is heard that the caller goes while nothing is taken at all. And
it has so long to take something: of texts, what was typed is dropped; bytes that lack some are of no use to anybody, so
their door is closed.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from hostler.entry.server import body as incoming
from hostler.entry.terminal import protocol
from hostler.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hostler.entry.server.route import Raw

MISTAKES = 10
"""Messages that cannot be understood before it is enough."""
TYPED_WITHIN = 30.0
"""Seconds for which a shell may take nothing of what is typed; then that is dropped."""
TAKEN_WITHIN = 60.0
"""Seconds for which a machine may take nothing of the bytes that come through a door; then that is closed."""
PIECE = 32 * 1024
"""Bytes of which a machine must have taken the most within that time, or about."""
AHEAD = 64 * 1024
"""Characters or bytes that may wait for the machine before no more is read."""
LAST_WORDS = 1.0
"""Seconds for what was typed before the caller went."""
_EACH = 64
"""What a message counts beside its characters."""


class Hearing:
    """What the caller of a WebSocket says.

    `last_words`: seconds for what was said before they went; None: as long as some of it is taken in time, for it may
    be the end of a file.
    """

    def __init__(self, raw: Raw, *, last_words: float | None = LAST_WORDS) -> None:
        self._raw, self._last_words = raw, last_words
        self._said: asyncio.Queue[str | bytes] = asyncio.Queue()
        self._ahead = 0
        self._room = asyncio.Event()
        self._taken = False

    async def until_gone(self) -> None:
        """Hear them until they go. What they said before is passed on yet, if somebody takes it."""
        while (message := await self._raw.receive())["type"] != "websocket.disconnect":
            if message["type"] != "websocket.receive":
                continue
            data: bytes | None = message.get("bytes")
            said: str | bytes = message["text"] if data is None else data
            self._said.put_nowait(said)
            self._ahead += _size(said)
            while self._ahead > AHEAD:
                self._room.clear()
                await self._room.wait()
        if self._taken:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._last_words):
                    await self._said.join()

    async def passed_to(self, take: Callable[[protocol.Said], Awaitable[None]]) -> int:
        """Pass on what they say in JSON, until they talk nonsense: the code that says so."""
        mistakes = 0

        async def passed(text: str | bytes) -> int | None:
            nonlocal mistakes
            if isinstance(text, bytes):
                await tell(self._raw, "message: it is binary; send JSON as text")
                return protocol.NOT_TEXT
            try:
                said = protocol.heard(text)
            except Invalid as error:
                await tell(self._raw, str(error))
                mistakes += 1
                return protocol.NO_LONGER if mistakes >= MISTAKES else None
            if not await _in_time(take(said), TYPED_WITHIN):
                await tell(self._raw, "input: the shell takes none at present; what was typed is dropped")
            return None

        return await self._each(passed)

    async def written_to(self, write: Callable[[bytes], Awaitable[None]]) -> int:
        """Pass on what they say as it is, until nothing is taken any more: the code that says so."""

        async def passed(said: str | bytes) -> int | None:
            data = said.encode() if isinstance(said, str) else said
            for start in range(0, len(data), PIECE):
                if not await _in_time(write(data[start : start + PIECE]), TAKEN_WITHIN):
                    return protocol.FAILED
            return None

        return await self._each(passed)

    async def _each(self, passed: Callable[[str | bytes], Awaitable[int | None]]) -> int:
        self._taken = True
        while True:
            said = await self._said.get()
            if (code := await passed(said)) is not None:
                return code
            self._said.task_done()
            self._ahead -= _size(said)
            self._room.set()


async def _in_time(taking: Awaitable[None], within: float) -> bool:
    """Whether it was taken in time."""
    try:
        async with asyncio.timeout(within):
            await taking
    except TimeoutError:
        return False
    return True


async def tell(raw: Raw, mistake: str) -> None:
    """Say what is wrong."""
    await send(raw, "send", text=protocol.error(mistake))


async def send(raw: Raw, what: str, **more: str | int) -> None:
    """`accept`, `send` or `close`. Disconnected: there is nobody any more."""
    try:
        await raw.send({"type": f"websocket.{what}", **more})
    except (OSError, RuntimeError):  # uvicorn's words for a caller that has gone, or is going
        raise incoming.Disconnected from None


def _size(said: str | bytes) -> int:
    return _EACH + len(said)
