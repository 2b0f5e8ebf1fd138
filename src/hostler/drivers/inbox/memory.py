"""Lab queues and records in memory: for tests, and for labs without Redis.

server = MemoryRedis()
async with MemoryInbox(server) as inbox, MemoryLabRecords(server) as board:
    server.push("provision", b'{"webuserid":"ada","labId":5}')
    (taken,) = await inbox.take("w1", limit=10, within=1.0)
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict, deque
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import msgspec

from hostler.errors import Closed
from hostler.keys.lab import check_user, user_of_request
from hostler.ports.inbox import AHEAD, BEHIND, KEPT, LONGEST, QUEUES, Shown, Taken

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from types import TracebackType

    from hostler.model.lab import LabNews, LabServer
    from hostler.ports.inbox import Published, QueueName

    Faults: TypeAlias = Callable[[Literal["before", "after"], str], Awaitable[None]]
    """Called with the verb, before and after it acts: raises Unavailable before or Uncertain after, or waits."""

NEWS_SHOWN = 100


ordered_user = user_of_request
"""Return the user of a request; None: it names no user, so it is not ordered."""


class Dead(msgspec.Struct, frozen=True, kw_only=True):
    """A request that could not be parsed."""

    queue: QueueName
    request: bytes
    reason: str
    at: float
    worker: str


class _Queue:
    """One queue, and the state of its requests."""

    def __init__(self) -> None:
        self.waiting: deque[bytes] = deque()
        self.busy: dict[str, str] = {}
        self.next: defaultdict[str, deque[bytes]] = defaultdict(deque)
        self.processing: defaultdict[str, list[Taken]] = defaultdict(list)

    def pop_next(self, user: str | None) -> bytes | None:
        """Remove and return the user's next request that was set aside."""
        if user is None or user not in self.next:
            return None
        raw = self.next[user].popleft()
        if not self.next[user]:
            del self.next[user]
        return raw


class MemoryRedis:
    """The state that a Redis server would hold, shared by its workers and boards."""

    def __init__(self, *, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._tokens = itertools.count(1)
        self._epochs = itertools.count(1)
        self._wake = asyncio.Event()
        self.flush()

    def flush(self) -> None:
        """Delete everything, as FLUSHALL does."""
        self.queues: dict[QueueName, _Queue] = {queue: _Queue() for queue in QUEUES}
        self.workers: set[str] = set()
        self.dead: list[Dead] = []
        self.records: dict[str, LabServer] = {}
        self.generations: dict[str, int] = {}
        self.news: dict[str, list[LabNews]] = {}
        self.waiting: dict[str, float] = {}
        self.restart()

    def restart(self) -> None:
        """Restart without losing data, which clients cannot know: the epoch changes."""
        self.epoch = f"memory-{next(self._epochs)}"

    def push(self, queue: QueueName, raw: bytes) -> None:
        """Push a request, as the front end does."""
        self.queues[queue].waiting.append(raw)
        self._wake.set()

    def take(self, worker: str, limit: int) -> list[Taken]:
        """One step of `Inbox.take`: from both queues in turn."""
        self.workers.add(worker)
        taken: list[Taken] = []
        while len(taken) < limit and any(queue.waiting for queue in self.queues.values()):
            for name, queue in self.queues.items():
                if queue.waiting and len(taken) < limit:
                    raw = queue.waiting.popleft()
                    if len(raw) > LONGEST:
                        self.dead.append(self._too_long(name, worker, raw))
                        continue
                    user = ordered_user(raw)
                    if user is not None and user in queue.busy:
                        queue.next[user].append(raw)
                    else:
                        taken.append(self._hand(name, worker, user, raw))
        return taken

    def take_of(self, worker: str, name: QueueName, user: str) -> Taken | bool:
        """One step of `Inbox.take_of`."""
        queue = self.queues[name]
        if user in queue.busy:
            return True
        self.workers.add(worker)
        for at, raw in enumerate(itertools.islice(queue.waiting, AHEAD)):
            if len(raw) <= LONGEST and ordered_user(raw) == user:
                del queue.waiting[at]
                return self._hand(name, worker, user, raw)
        return False

    def acknowledge(self, worker: str, done: Taken) -> Taken | None:
        """One step: return the user's next request, if `worker` still held this one and there is another."""
        queue = self.queues[done.queue]
        if done not in queue.processing.get(worker, ()):
            return None
        queue.processing[worker].remove(done)
        user = ordered_user(done.raw)
        if user is not None:
            queue.busy.pop(user, None)
        raw = queue.pop_next(user)
        return None if raw is None else self._hand(done.queue, worker, user, raw)

    def release(self, worker: str, done: Sequence[Taken]) -> int:
        """One step: take all requests from a worker, and remove the worker from the set."""
        tokens, count = {taken.token for taken in done}, 0
        for queue in self.queues.values():
            for held in reversed(queue.processing.pop(worker, [])):
                user = ordered_user(held.raw)
                if user is not None:
                    queue.busy.pop(user, None)
                # Later requests stay aside: a request at the front is taken before any other of this user.
                raw = queue.pop_next(user) if held.token in tokens else held.raw
                if raw is not None:
                    queue.waiting.appendleft(raw)
                    count += held.token not in tokens
        self.workers.discard(worker)
        self._wake.set()
        return count

    async def wait_for_push(self) -> None:
        """Wait until a request may have arrived."""
        self._wake.clear()
        await self._wake.wait()

    def _too_long(self, queue: QueueName, worker: str, raw: bytes) -> Dead:
        reason = f"request of {len(raw)} bytes: longer than the {LONGEST} that are looked into"
        return Dead(queue=queue, request=raw[:KEPT], reason=reason, at=self._wall(), worker=worker)

    def _hand(self, queue: QueueName, worker: str, user: str | None, raw: bytes) -> Taken:
        taken = Taken(queue, f"t{next(self._tokens)}", raw)
        self.queues[queue].processing[worker].append(taken)
        if user is not None:
            self.queues[queue].busy[user] = worker
        return taken


class _Client:
    """Opened once, closed once; each verb calls the fault hook."""

    def __init__(self, server: MemoryRedis, *, faults: Faults | None = None) -> None:
        self._server, self._faults, self._open = server, faults, False

    async def __aenter__(self) -> Self:
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open = False

    @asynccontextmanager
    async def _verb(self, name: str) -> AsyncIterator[MemoryRedis]:
        if not self._open:
            raise Closed(f"lab queues in memory: {name}: not open; use it inside `async with`")
        if self._faults is not None:
            await self._faults("before", name)
        yield self._server
        if self._faults is not None:
            await self._faults("after", name)


class MemoryInbox(_Client):
    """The queues of a MemoryRedis."""

    async def take(self, worker: str, *, limit: int, within: float) -> Sequence[Taken]:
        async with self._verb("take") as server:
            with suppress(TimeoutError):
                async with asyncio.timeout(within):
                    while not (taken := server.take(worker, limit)) and within > 0:
                        await server.wait_for_push()
            return taken

    async def take_of(self, worker: str, queue: QueueName, user: str) -> Taken | bool:
        async with self._verb("take_of") as server:
            return server.take_of(worker, queue, user)

    async def behind(self, queue: QueueName, user: str) -> Sequence[bytes]:
        async with self._verb("behind") as server:
            where = server.queues[queue]
            waiting = [raw for raw in itertools.islice(where.waiting, AHEAD) if ordered_user(raw) == user]
            return [*where.next.get(user, ()), *waiting][-BEHIND:]

    async def held(self, worker: str) -> Sequence[Taken]:
        async with self._verb("held") as server:
            return [taken for queue in server.queues.values() for taken in queue.processing.get(worker, ())]

    async def acknowledge(self, worker: str, done: Sequence[Taken]) -> Sequence[Taken]:
        async with self._verb("acknowledge") as server:
            return [taken for one in done if (taken := server.acknowledge(worker, one)) is not None]

    async def bury(self, worker: str, taken: Taken, reason: str, at: float) -> Sequence[Taken]:
        async with self._verb("bury") as server:
            if taken in server.queues[taken.queue].processing.get(worker, ()):
                server.dead.append(Dead(queue=taken.queue, request=taken.raw, reason=reason, at=at, worker=worker))
            following = server.acknowledge(worker, taken)
            return [] if following is None else [following]

    async def workers(self) -> frozenset[str]:
        async with self._verb("workers") as server:
            return frozenset(server.workers)

    async def release(self, worker: str, done: Sequence[Taken]) -> int:
        async with self._verb("release") as server:
            return server.release(worker, done)


class MemoryLabRecords(_Client):
    """The records of a MemoryRedis. They live as long as it does."""

    async def epoch(self) -> str:
        async with self._verb("epoch") as server:
            return server.epoch

    async def publish(self, changes: Sequence[Published]) -> int:
        async with self._verb("publish") as server:
            for change in changes:
                check_user(change.user)  # before any is published
            return sum(_published(server, change) for change in changes)

    async def refresh(self, users: Sequence[str]) -> Sequence[str]:
        async with self._verb("refresh") as server:
            return [user for user in users if user not in server.records]

    async def servers(self) -> dict[str, LabServer | None]:
        async with self._verb("servers") as server:
            return dict(server.records)

    async def withdraw(self, user: str, revision: int) -> bool:
        async with self._verb("withdraw") as server:
            if server.generations.get(user, 0) > revision:
                return False
            server.generations[user] = revision
            server.waiting.pop(user, None)
            return server.records.pop(user, None) is not None

    async def shown(self) -> dict[str, Shown]:
        async with self._verb("shown") as server:
            last = {user: news[-1].number for user, news in server.news.items() if news}
            return {user: Shown(revision, last.get(user, 0)) for user, revision in server.generations.items()}

    async def forget(self, user: str, revision: int) -> bool:
        async with self._verb("forget") as server:
            if server.generations.get(user) != revision:
                return False
            maps: tuple[dict[str, Any], ...] = (server.generations, server.records, server.waiting, server.news)
            for where in maps:
                where.pop(user, None)
            return True


def _published(server: MemoryRedis, change: Published) -> bool:
    user = change.user
    if server.generations.get(user, 0) > change.revision:
        return False
    server.generations[user] = change.revision
    shown = server.news.get(user, [])
    last = shown[-1].number if shown else 0
    fresh = [news for news in change.news if news.number > last]
    if fresh:
        server.news[user] = [*shown, *fresh][-NEWS_SHOWN:]
    record = _changed(server.records, user, change.server)
    return _changed(server.waiting, user, change.waits_since) or record or bool(fresh)


def _changed(where: dict[str, Any], user: str, value: object) -> bool:
    """Set the value, or remove it if None; return whether that changed something."""
    if where.get(user) == value:
        return False
    where[user] = value
    if value is None:
        del where[user]
    return True
