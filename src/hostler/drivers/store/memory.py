"""The store in this process's memory: the reference, for tests and simulation."""

from __future__ import annotations

import asyncio
import heapq
import math
import random
from contextvars import Context
from operator import attrgetter
from typing import TYPE_CHECKING, Self

from hostler.drivers.store.local_store import StateStore
from hostler.drivers.store.mvcc import Mvcc
from hostler.drivers.store.watch_hub import BACKLOG, WatchHub
from hostler.errors import Invalid
from hostler.kit.clock import SystemClock
from hostler.ports.store import (
    Status,
    check_revision,
    check_ttl,
    check_txn,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hostler.drivers.store.watch_hub import LocalWatch
    from hostler.kit.clock import Clock
    from hostler.ports.store import Comparison, Event, KeyValue, Operation, Page, TxnResult

HISTORY = 100_000
"""Revisions that stay readable before the store compacts itself."""
_CALLS_IN_A_ROW = 50
_KEY = attrgetter("kv.key")
_OWN_KEY = attrgetter("key")


def _itself(event: Event) -> Event:
    return event


class MemoryStore(StateStore):
    """Lost when it is closed. Every verb is one step of the event loop, and few of them wait."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        history: int = HISTORY,
        backlog: int = BACKLOG,
    ) -> None:
        if history < 1:
            raise Invalid(f"history {history}: must keep at least one revision")
        self._clock = clock or SystemClock()
        self._rng = rng or random.SystemRandom()
        self._keep = history
        self._state = Mvcc()
        self._hub = WatchHub(self, backlog=backlog)
        # A heap. An entry of a lease that was renewed or revoked is corrected when it comes up.
        self._ends: list[tuple[float, int]] = []
        self._calls = 0
        self._expiry: asyncio.Task[None] | None = None
        self._pause: asyncio.Future[None] | None = None
        self._paused_until = math.inf

    async def __aenter__(self) -> Self:
        self._hub.open()
        return self

    async def aclose(self) -> None:
        self._hub.close()
        if self._expiry is not None:
            self._expiry.cancel()
            await asyncio.gather(self._expiry, return_exceptions=True)
            self._expiry = None

    # Reading

    async def _current(self) -> Mvcc:
        if self._is_turn():
            await asyncio.sleep(0)
        self._catch_up()
        return self._state

    def watch(
        self,
        prefix: str,
        *,
        start_revision: int | None = None,
        previous: bool = True,  # noqa: ARG002 - always included, at no cost
    ) -> LocalWatch:
        return self._hub.watch(prefix, start_revision)

    async def status(self) -> Status:
        if self._is_turn():
            await asyncio.sleep(0)
        self._catch_up()
        return self._status()

    def _status(self) -> Status:
        size = sum(len(kv.key) + len(kv.value) for kv in self._state.values())
        details = {"keys": str(len(self._state)), "leases": str(len(self._state.leases))}
        return Status("memory", "1", self._state.revision, self._state.compacted, size, details)

    def lease_lateness(self, ttl: float) -> float:  # noqa: ARG002 - the same for every ttl
        return 1.0

    # Writing

    async def txn(
        self, when: Sequence[Comparison], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TxnResult:
        check_txn(when, then, otherwise)
        return await self._commit(when, then, otherwise)

    async def compact(self, revision: int) -> None:
        check_revision(revision, optional=False)
        if self._is_turn():
            await asyncio.sleep(0)
        self._catch_up()
        self._state.compact(revision)

    async def raise_revision(self, revision: int) -> None:
        """See `RaisesRevision`."""
        check_revision(revision, optional=False)
        self._catch_up()
        self._state.raise_revision(revision)

    async def grant(self, ttl: float) -> MemoryLease:
        ttl = check_ttl(ttl)
        if self._is_turn():
            await asyncio.sleep(0)
        return self._grant(ttl)

    def _grant(self, ttl: float) -> MemoryLease:
        self._catch_up()
        id_ = self._rng.randrange(1, 2**63)
        while id_ in self._state.leases:
            id_ = self._rng.randrange(1, 2**63)
        deadline = self._clock.now() + ttl
        self._state.grant(id_, ttl, deadline)
        self._end_at(deadline, id_)
        return MemoryLease(self, id_, ttl)

    # For leases and watches

    def keep_alive(self, id_: int) -> None:
        now = self._catch_up()
        lease = self._state.lease(id_)
        lease.deadline = now + lease.ttl

    def revoke(self, id_: int) -> None:
        self._catch_up()
        self._publish(self._state.revoke(id_))

    def remaining(self, id_: int) -> float:
        now = self._catch_up()
        lease = self._state.leases.get(id_)
        return 0.0 if lease is None else min(lease.ttl, lease.deadline - now)

    async def time_left(self, lease: int) -> float:
        return self.remaining(lease)

    def current_revision(self) -> int:
        return self._state.revision

    def compact_revision(self) -> int:
        return self._state.compacted

    def changes(self, prefix: str, start_revision: int, limit: int) -> tuple[list[Event], int]:
        return self._state.changes(prefix, start_revision, limit)

    def aside(self) -> AsideStore:
        """Return the same store, for a caller that must not change the order in which others are served."""
        return AsideStore(self)

    # Internal

    def _is_turn(self) -> bool:
        """Return whether to yield now, by count: a simulation must not depend on the speed of the host."""
        self._calls += 1
        return self._calls % _CALLS_IN_A_ROW == 0

    async def _commit(
        self, when: Sequence[Comparison], then: Sequence[Operation], otherwise: Sequence[Operation]
    ) -> TxnResult:
        if self._is_turn():
            await asyncio.sleep(0)
        return self._apply(when, then, otherwise)

    def _apply(
        self, when: Sequence[Comparison], then: Sequence[Operation], otherwise: Sequence[Operation]
    ) -> TxnResult:
        self._catch_up()
        result, events = self._state.txn(when, then, otherwise)
        self._publish(events)
        if self._state.revision - self._state.compacted > 2 * self._keep:
            self._state.compact(self._state.revision - self._keep)
        return result

    def _publish(self, events: tuple[Event, ...]) -> None:
        if events:
            self._hub.publish(self._state.revision, events, key=_KEY, event=_itself)

    def _catch_up(self) -> float:
        """End expired leases, so that no verb sees keys that should be gone, and return the current time."""
        self._hub.check_open()
        now = self._clock.now()
        while self._ends and self._ends[0][0] <= now:
            deadline, id_ = heapq.heappop(self._ends)
            lease = self._state.leases.get(id_)
            if lease is None:
                continue
            if lease.deadline != deadline:
                heapq.heappush(self._ends, (lease.deadline, id_))
            else:
                self._publish(self._state.revoke(id_))
        return now

    def _end_at(self, deadline: float, id_: int) -> None:
        if len(self._ends) > 2 * len(self._state.leases) + 100:
            self._ends = [(lease.deadline, lease.id) for lease in self._state.leases.values()]
            heapq.heapify(self._ends)
        else:
            heapq.heappush(self._ends, (deadline, id_))
        if self._expiry is None:
            # In an empty context: it must not inherit the context of the first caller that was granted a lease.
            self._expiry = asyncio.get_running_loop().create_task(
                self._expire_on_time(), name="memory store: expiry", context=Context()
            )
        elif deadline < self._paused_until and self._pause is not None:
            self._pause.cancel()

    async def _expire_on_time(self) -> None:
        while self._ends:
            self._paused_until = self._ends[0][0]
            self._pause = asyncio.ensure_future(self._clock.sleep(max(0.0, self._paused_until - self._clock.now())))
            try:
                await asyncio.wait((self._pause,))
            finally:
                if self._pause.cancel():
                    await asyncio.gather(self._pause, return_exceptions=True)
            self._catch_up()
        self._expiry = None


class AsideStore:
    """A memory store as seen from outside a simulation.

    No verb waits, no verb counts towards the turns of others, and reading ends no lease. A caller that only reads
    changes nothing for the processes inside, not even their order.
    """

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def get(self, key: str, *, revision: int | None = None) -> KeyValue | None:
        return self._store._state.get(key, revision)

    async def range(
        self,
        prefix: str,
        *,
        after: str | None = None,
        limit: int | None = None,
        revision: int | None = None,
        keys_only: bool = False,
    ) -> Page:
        return self._store._state.range(prefix, after=after, limit=limit, revision=revision, keys_only=keys_only)

    def watch(self, prefix: str, *, start_revision: int | None = None, previous: bool = True) -> LocalWatch:
        return self._store.watch(prefix, start_revision=start_revision, previous=previous)

    async def status(self) -> Status:
        return self._store._status()

    def lease_lateness(self, ttl: float) -> float:
        return self._store.lease_lateness(ttl)

    async def time_left(self, lease: int) -> float:
        found = self._store._state.leases.get(lease)
        return 0.0 if found is None else min(found.ttl, found.deadline - self._store._clock.now())

    def parts(self) -> Iterator[bytes]:
        """Yield the whole content of the store, in order: two stores with the same content are equal."""
        state = self._store._state
        yield f"{state.revision} {state.compacted} {self._store._calls}\n".encode()
        for kv in sorted(state.values(), key=_OWN_KEY):
            yield f"{kv.key} {kv.create_revision} {kv.mod_revision} {kv.version} {kv.lease}\n".encode() + kv.value
        for lease in state.leases.values():
            yield f"\n{lease.id} {lease.ttl} {lease.deadline}".encode()

    # Writes, each completed before it returns

    def commit(
        self, when: Sequence[Comparison], then: Sequence[Operation], otherwise: Sequence[Operation]
    ) -> TxnResult:
        """Run one transaction."""
        return self._store._apply(when, then, otherwise)

    def grant(self, ttl: float) -> MemoryLease:
        """Grant a lease."""
        return self._store._grant(ttl)

    def keep_alive(self, id_: int) -> None:
        """Renew a lease."""
        self._store.keep_alive(id_)

    def revoke(self, id_: int) -> None:
        """End a lease."""
        self._store.revoke(id_)

    def compact(self, revision: int) -> None:
        """Discard older history."""
        self._store._catch_up()
        self._store._state.compact(revision)


class MemoryLease:
    """A lease of a MemoryStore."""

    def __init__(self, store: MemoryStore, id_: int, ttl: float) -> None:
        self._store, self.id, self.ttl = store, id_, ttl

    async def keep_alive(self) -> None:
        self._store.keep_alive(self.id)

    async def revoke(self) -> None:
        self._store.revoke(self.id)

    async def remaining(self) -> float:
        return self._store.remaining(self.id)
