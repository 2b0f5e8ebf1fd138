"""Waits for requests to arrive in the queues."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Connection

    from hostler.drivers.redis_client import RedisLink

LISTENS = 5
"""Seconds after which the server answers that nothing arrived."""


class BlockingWait:
    """Moves the head of each queue onto itself as soon as there is one: that changes nothing, and can be waited for.

    One connection per queue, which keeps listening between two waits.
    """

    def __init__(self, link: RedisLink, queues: Sequence[str]) -> None:
        self._link, self._queues = link, queues
        self._listening: dict[str, asyncio.Task[None]] = {}
        self._connections: dict[str, Connection] = {}

    async def wait(self, within: float) -> None:
        """Wait until a request may have arrived, or the time is over. Raises what the client raises."""
        for queue in self._queues:
            before = self._listening.get(queue)
            if before is not None and before.done():
                _ignore(before)  # its result or error is outdated
                before = None
            if before is None:
                self._listening[queue] = asyncio.create_task(self._listen(queue), name=f"redis: {queue}")
        ended, _ = await asyncio.wait(self._listening.values(), timeout=within, return_when=asyncio.FIRST_COMPLETED)
        for queue, task in list(self._listening.items()):
            if task in ended:
                del self._listening[queue]
        for task in ended:
            _ignore(task)  # both may have failed, and only one error can be raised
        for task in ended:
            if not task.cancelled():
                task.result()

    async def aclose(self) -> None:
        """Stop listening and wake waiters."""
        tasks = list(self._listening.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for task in tasks:
            _ignore(task)
        self._listening.clear()
        while self._connections:
            await self._link.drop(self._connections.popitem()[1])

    async def _listen(self, queue: str) -> None:
        connection = self._connections.pop(queue, None)
        if connection is None or not connection.is_connected:
            connection = await self._link.connect()
        heard = False
        try:
            async with asyncio.timeout(LISTENS + self._link.timeout):
                await connection.send_command("BLMOVE", queue, queue, "LEFT", "LEFT", LISTENS)
                await connection.read_response()
            heard = True
        finally:
            if heard:
                self._connections[queue] = connection
            else:
                await self._link.drop(connection)


def _ignore(task: asyncio.Task[None]) -> None:
    """Retrieve the task's error, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()
