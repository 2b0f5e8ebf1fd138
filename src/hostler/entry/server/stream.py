"""Bytes between a WebSocket and a channel of a machine, until one side ends it.

A WebSocket is closed for both directions at once. When the machine's side ends, all of its output is delivered, then
the WebSocket is closed with code 1000. When the client closes, all of its input is delivered first. Neither side is
read much faster than the other accepts data. A machine that accepts nothing does not hold a stream forever
(`WebSocketInput`).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hostler.entry.server.websocket_input import WebSocketInput

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from hostler.entry.server.route import Raw
    from hostler.ports.machines import Channel

NORMAL, GOING_AWAY, NO_LONGER, FAILED = 1000, 1001, 1008, 1011
LARGEST = 256 * 1024
"""Largest message that the server sends, in bytes."""


async def joined(raw: Raw, channel: Channel, over: Awaitable[int]) -> None:
    """Copy data until the client disconnects, the machine's side ends, or `over` returns a close code."""
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
