"""Bytes between a WebSocket and a machine's door, until one side ends it.

A WebSocket has one end, not two. When the machine's side ends, all that it said is delivered, and then the WebSocket is
closed with code 1000; when the caller closes, all that it sent before goes through the door first. Neither side is read
faster than the other takes it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from hostler.entry.server.route import Raw
    from hostler.ports.machines import Channel

NORMAL, GOING_AWAY, NO_LONGER, FAILED = 1000, 1001, 1008, 1011
LARGEST = 256 * 1024
"""Bytes of one message that we send."""


async def joined(raw: Raw, channel: Channel, over: Awaitable[int]) -> None:
    """Until the caller goes, the machine's side ends, or `over` answers with the code to close with."""
    leaving = asyncio.create_task(_in(raw, channel), name="stream: input")
    ending = asyncio.ensure_future(over)
    tasks = [leaving, ending, asyncio.create_task(_out(raw, channel), name="stream: output")]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        failed = any(task.exception() for task in done)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if leaving in done and not failed:
        return
    code = ending.result() if ending in done and not failed else FAILED if failed else NORMAL
    with suppress(OSError, RuntimeError):  # uvicorn's words for a caller that has gone, or is going
        await raw.send({"type": "websocket.close", "code": code})


async def _out(raw: Raw, channel: Channel) -> None:
    while data := await channel.read():
        for start in range(0, len(data), LARGEST):
            await raw.send({"type": "websocket.send", "bytes": data[start : start + LARGEST]})


async def _in(raw: Raw, channel: Channel) -> None:
    while True:
        message = await raw.receive()
        if message["type"] == "websocket.disconnect":
            return
        if message["type"] == "websocket.receive":
            data = message.get("bytes")
            await channel.write(message["text"].encode() if data is None else data)
