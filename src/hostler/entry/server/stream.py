"""Bytes between a WebSocket and a machine's door, until one side ends it.

A WebSocket has one end, not two. When the machine's side ends, all that it said is delivered, and then the WebSocket is
closed with code 1000; when the caller closes, all that it sent before goes through the door first. Neither side is read
(much) faster than the other takes it. A machine that takes nothing keeps nobody's place for ever (`hearing`).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from hostler.entry.server.websocket_input import Hearing

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from hostler.entry.server.route import Raw
    from hostler.ports.machines import Channel

NORMAL, GOING_AWAY, NO_LONGER, FAILED = 1000, 1001, 1008, 1011
LARGEST = 256 * 1024
"""Bytes of one message that we send."""


async def joined(raw: Raw, channel: Channel, over: Awaitable[int]) -> None:
    """Until the caller goes, the machine's side ends, or `over` answers with the code to close with."""
    hearing = Hearing(raw, last_words=None)  # `written_to` gives up where nothing is taken
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
    with suppress(OSError, RuntimeError):  # uvicorn's words for a caller that has gone, or is going
        await raw.send({"type": "websocket.close", "code": code, "reason": why})


async def _out(raw: Raw, channel: Channel) -> None:
    """What the machine says, until it ends. A caller who goes hears no more; what it sent goes in yet (`hearing`)."""
    while data := await channel.read():
        for start in range(0, len(data), LARGEST):
            with suppress(OSError, RuntimeError):  # as above
                await raw.send({"type": "websocket.send", "bytes": data[start : start + LARGEST]})
