"""WebSockets: the messages that a client sends, and the bytes of a channel."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hostler.entry.server import body as incoming
from hostler.entry.terminal import protocol
from hostler.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hostler.entry.server.route import Raw
    from hostler.ports.machines import Channel


MISTAKES = 10
"""Invalid messages before the connection is closed."""
TYPED_WITHIN = 30.0
"""Seconds for which a shell may accept no input; after that the input is dropped."""
TAKEN_WITHIN = 60.0
"""Seconds for which a machine may accept no bytes of a channel; after that the channel is closed."""
PIECE = 32 * 1024
"""Bytes of which a machine must have accepted most within that time."""
AHEAD = 64 * 1024
"""Characters or bytes that may wait for the machine before reading is paused."""
LAST_WORDS = 1.0
"""Seconds to deliver what was typed before the client disconnected."""
_EACH = 64
"""Overhead of a message in addition to its characters."""


class WebSocketInput:
    """Input of a WebSocket client to a machine: JSON texts to a terminal or shell, bytes to a channel.

    Some input is read ahead of what the machine accepts, so that a disconnect is noticed while the machine accepts
    nothing. The machine must accept input within a time limit. After that, typed text is dropped. A byte stream with
    gaps is useless, so its channel is closed. The texts are those of `entry.terminal.protocol`.

    `last_words`: seconds to deliver what was sent before the disconnect; None: as long as some of it is accepted in
    time, because it may be the end of a file.
    """

    def __init__(self, raw: Raw, *, last_words: float | None = LAST_WORDS) -> None:
        self._raw, self._last_words = raw, last_words
        self._said: asyncio.Queue[str | bytes] = asyncio.Queue()
        self._ahead = 0
        self._room = asyncio.Event()
        self._taken = False

    async def until_gone(self) -> None:
        """Read input until the client disconnects. Earlier input is still delivered if the machine accepts it."""
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
        """Pass on JSON messages until too many are invalid. Return the close code."""
        mistakes = 0

        async def passed(text: str | bytes) -> int | None:
            nonlocal mistakes
            if isinstance(text, bytes):
                await tell(self._raw, "message: binary; send JSON as text")
                return protocol.NOT_TEXT
            try:
                said = protocol.decode_message(text)
            except Invalid as error:
                await tell(self._raw, str(error))
                mistakes += 1
                return protocol.NO_LONGER if mistakes >= MISTAKES else None
            if not await _in_time(take(said), TYPED_WITHIN):
                await tell(self._raw, "input: the shell accepts none at present; the input is dropped")
            return None

        return await self._each(passed)

    async def written_to(self, write: Callable[[bytes], Awaitable[None]]) -> int:
        """Pass on the input unchanged until the machine accepts no more. Return the close code."""

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
    """Return whether the input was accepted in time."""
    try:
        async with asyncio.timeout(within):
            await taking
    except TimeoutError:
        return False
    return True


async def tell(raw: Raw, mistake: str) -> None:
    """Send an error message."""
    await send(raw, "send", text=protocol.error(mistake))


async def send(raw: Raw, what: str, **more: str | int) -> None:
    """Send `accept`, `send` or `close`. Disconnected: the client has disconnected."""
    try:
        await raw.send({"type": f"websocket.{what}", **more})
    except (OSError, RuntimeError):  # uvicorn raises these for a client that has disconnected
        raise incoming.Disconnected from None


def _size(said: str | bytes) -> int:
    return _EACH + len(said)


NORMAL, GOING_AWAY, NO_LONGER, FAILED = 1000, 1001, 1008, 1011
LARGEST = 256 * 1024
"""Largest message that the server sends, in bytes."""


async def join_streams(raw: Raw, channel: Channel, over: Awaitable[int]) -> None:
    """Copy data until the client disconnects, the machine's side ends, or `over` returns a close code.

    A WebSocket is closed for both directions at once. When the machine's side ends, all of its output is delivered,
    then the WebSocket is closed with code 1000. When the client closes, all of its input is delivered first. Neither
    side is read much faster than the other accepts data. A machine that accepts nothing does not hold a stream forever
    (`WebSocketInput`).
    """
    hearing = WebSocketInput(raw, last_words=None)  # `written_to` ends the stream if nothing is accepted
    leaving = asyncio.create_task(hearing.until_gone(), name="stream: hearing")
    taking = asyncio.create_task(hearing.written_to(channel.write), name="stream: input")
    ending = asyncio.ensure_future(over)
    tasks: list[asyncio.Future[Any]] = [leaving, taking, ending]
    tasks.append(asyncio.create_task(_out(raw, channel), name="stream: output"))
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        failed = any(task.exception() for task in done)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if leaving in done and not failed:
        return
    if failed:
        code, why = FAILED, "the machine's side failed"
    elif taking in done:
        code, why = taking.result(), "the machine takes no input"
    else:
        code, why = ending.result() if ending in done else NORMAL, ""
    with suppress(OSError, RuntimeError):  # uvicorn raises these for a client that has disconnected
        await raw.send({"type": "websocket.close", "code": code, "reason": why})


async def _out(raw: Raw, channel: Channel) -> None:
    """Send the machine's output until it ends.

    After the client disconnects nothing is sent, but its last input is still delivered (`WebSocketInput`).
    """
    while data := await channel.read():
        for start in range(0, len(data), LARGEST):
            with suppress(OSError, RuntimeError):  # as above
                await raw.send({"type": "websocket.send", "bytes": data[start : start + LARGEST]})
