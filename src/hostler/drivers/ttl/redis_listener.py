"""Receives the announcements of the scripts, over one connection for all waiting readers."""

from __future__ import annotations

import asyncio
import math
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from hostler.kit.rate_limit import Backoff

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from redis.asyncio import Connection


class Listener:
    """Subscribes to the channels that have waiting readers; connected only while there are any.

    An announcement may be lost (the connection breaks, the server forbids subscribing), so readers must also poll.
    After each reconnection all readers are woken, because something may have been missed.
    """

    def __init__(self, connect: Callable[[], Awaitable[Connection]]) -> None:
        self._connect = connect
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def listening(self, channel: str) -> AsyncIterator[asyncio.Event]:
        """Yield an event that is set after each announcement on `channel`."""
        event = asyncio.Event()
        first = channel not in self._waiting
        self._waiting.setdefault(channel, set()).add(event)
        try:
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._listen(), name="redis: announcements")
            elif first:
                await self._tell("SUBSCRIBE", channel)
            yield event
        finally:
            self._waiting[channel].discard(event)
            if not self._waiting[channel]:
                del self._waiting[channel]
                await (self._tell("UNSUBSCRIBE", channel) if self._waiting else self.aclose())

    async def aclose(self) -> None:
        """Close the connection, and wake waiting readers a last time."""
        for event in (event for events in self._waiting.values() for event in events):
            event.set()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _tell(self, command: str, channel: str) -> None:
        connection = self._connection
        if connection is not None:
            with suppress(RedisError, OSError):  # the listening task notices it too
                await connection.send_command(command, channel)

    async def _listen(self) -> None:
        backoff = Backoff(0.1, 2.0)
        while True:
            with suppress(RedisError, OSError):
                connection = await self._connect()
                try:
                    # first: a reader that joins while this is being sent subscribes by itself
                    self._connection = connection
                    await connection.send_command("SUBSCRIBE", *self._waiting)
                    backoff.reset()
                    await self._hear(connection)
                finally:
                    self._connection = None
                    with suppress(RedisError, OSError):
                        await connection.disconnect(nowait=True)
            await asyncio.sleep(backoff.next())

    async def _hear(self, connection: Connection) -> None:
        while True:
            # A message, or the confirmation of a subscription: earlier announcements were not received.
            _, channel, *_ = await connection.read_response(timeout=math.inf)
            for event in self._waiting.get(channel.decode(errors="replace"), ()):
                event.set()
