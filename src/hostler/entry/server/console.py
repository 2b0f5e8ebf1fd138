"""The serial port of a machine, as a WebSocket: messages of bytes both ways."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from hostler.entry.server.authentication import caller_of
from hostler.entry.server.problem import INVALID, NOT_HERE, Refusal
from hostler.errors import HostlerError, Unavailable
from hostler.ports.machines import Door

if TYPE_CHECKING:
    from hostler.entry.server.route import Answer, Asked
    from hostler.ports.machines import Channel, Machines

LOOK_EVERY = 1.0
"""Seconds between two looks at the token."""
NORMAL, GOING_AWAY, NO_LONGER, FAILED = 1000, 1001, 1008, 1011


async def console(asked: Asked) -> Answer | None:
    """The console until one side ends it; a plain GET is told that it needs a WebSocket."""
    machines, vm = await machine_of(asked)
    if asked.raw.scope["type"] != "websocket":
        raise Refusal(INVALID, "console: it speaks WebSocket (version 13) only; ask for an upgrade to websocket")
    if asked.feed.streams >= asked.plan.max_streams or asked.feed.closing:
        raise Unavailable("console: no more are taken now; try again later")
    asked.feed.streams += 1
    try:
        async with machines.channel(vm, Door.CONSOLE) as port:
            await asked.raw.send({"type": "websocket.accept"})
            await _joined(asked, port)
    finally:
        asked.feed.streams -= 1
    return None


async def machine_of(asked: Asked) -> tuple[Machines, str]:
    """The driver that has the machine in this process, and the machine's id. Refusal: it is elsewhere."""
    parts = asked.parts
    vm = await asked.services.vms.get(asked.caller, parts["org"], parts["project"], parts["vm"])
    machines = None if vm.node is None else asked.services.machines_of(vm.node)
    if machines is None:
        where = "no node has it yet" if vm.node is None else f"it is on node {vm.node}, whose agent is another process"
        raise Refusal(NOT_HERE, f"console of {vm.name}: {where}; ask there, or wait")
    return machines, vm.id


async def _joined(asked: Asked, port: Channel) -> None:
    """Until the caller goes, the machine is off, the token no longer counts, or the server closes."""
    leaving = asyncio.create_task(_in(asked, port), name="console: input")
    counting = asyncio.create_task(_counting(asked), name="console: token")
    tasks = [leaving, counting, asyncio.create_task(_out(asked, port), name="console: output")]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        failed = any(task.exception() for task in done)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if leaving in done and not failed:
        return
    code = FAILED if failed else NORMAL
    if counting in done:
        code = GOING_AWAY if asked.feed.closing else NO_LONGER
    with suppress(OSError, RuntimeError):  # uvicorn's words for a caller that has gone, or is going
        await asked.raw.send({"type": "websocket.close", "code": code})


async def _out(asked: Asked, port: Channel) -> None:
    while data := await port.read():
        await asked.raw.send({"type": "websocket.send", "bytes": data})


async def _in(asked: Asked, port: Channel) -> None:
    while True:
        message = await asked.raw.receive()
        if message["type"] == "websocket.disconnect":
            return
        if message["type"] == "websocket.receive":
            data = message.get("bytes")
            await port.write(message["text"].encode() if data is None else data)


async def _counting(asked: Asked) -> None:
    while not asked.feed.closing:
        await asyncio.sleep(LOOK_EVERY)
        try:
            caller_of(asked.services, asked.raw.token, asked.source)
        except HostlerError:
            return
