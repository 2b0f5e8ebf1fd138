"""The `LabFrontEnd` implementations of our own drivers."""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import msgspec

from hostler.drivers.inbox.memory import MemoryInbox, MemoryLabRecords, MemoryRedis
from hostler.keys.lab import LabNames
from hostler.wiring import open_board, open_inbox

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from hostler.ports.inbox import Inbox, LabRecords, QueueName


class MemoryLabFrontEnd:
    """In memory. The classes can be replaced to test the suite against defects."""

    made_of: type[MemoryRedis] = MemoryRedis
    inbox_of: type[MemoryInbox] = MemoryInbox
    board_of: type[MemoryLabRecords] = MemoryLabRecords

    def __init__(self) -> None:
        self.memory = self.made_of()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def inbox(self) -> Inbox:
        return self.inbox_of(self.memory)

    def board(self) -> LabRecords:
        return self.board_of(self.memory)

    async def push(self, queue: QueueName, *requests: bytes) -> None:
        for raw in requests:
            self.memory.push(queue, raw)

    async def dead(self) -> Sequence[tuple[str, str, str, float, str]]:
        return [
            (one.queue, one.request.decode(errors="backslashreplace"), one.reason, one.at, one.worker)
            for one in self.memory.dead
        ]

    async def news(self, user: str) -> Sequence[tuple[int, str]]:
        return [(news.number, news.event.value) for news in self.memory.news.get(user, ())]

    async def waiting(self) -> Sequence[str]:
        return sorted(self.memory.waiting, key=lambda user: (self.memory.waiting[user], user))

    async def flush(self) -> None:
        self.memory.flush()


class RedisLabFrontEnd:
    """On a server, in a private namespace that is removed at the end."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.names = LabNames(prefix=f"Test:{secrets.token_hex(4)}:")
        self.client: Any  # its types do not support bytes

    async def __aenter__(self) -> Self:
        from redis.asyncio import Redis

        self.client = Redis.from_url(self.url)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with suppress(OSError):
            await self.flush()
        await self.client.aclose()

    def inbox(self) -> Inbox:
        return open_inbox(self.url, names=self.names)

    def board(self) -> LabRecords:
        return open_board(self.url, names=self.names)

    async def push(self, queue: QueueName, *requests: bytes) -> None:
        await self.client.rpush(self.names.provision if queue == "provision" else self.names.decommission, *requests)

    async def dead(self) -> Sequence[tuple[str, str, str, float, str]]:
        found = [msgspec.json.decode(one) for one in await self.client.lrange(self.names.dead, 0, -1)]
        return [(one["queue"], one["request"], one["reason"], one["at"], one["worker"]) for one in found]

    async def news(self, user: str) -> Sequence[tuple[int, str]]:
        found = await self.client.xrange(self.names.events(user))
        return [(int(key.partition(b"-")[0]), fields[b"event"].decode()) for key, fields in found]

    async def waiting(self) -> Sequence[str]:
        return [user.decode() for user in await self.client.zrange(self.names.waiting, 0, -1)]

    async def flush(self) -> None:
        keys = await self.client.keys(f"{self.names.prefix}*")
        if keys:
            await self.client.delete(*keys)
