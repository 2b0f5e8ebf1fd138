"""A store on a paced loop, usable from the event loop of another thread.

Every operation runs on the paced loop, at the present virtual instant, and its result is returned to the caller's loop.
The world owns the underlying store: opening and closing the bridged store do not affect it.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any, Self, TypeVar

from hostler.drivers.store.watch_hub import EventQueue
from hostler.errors import Closed, HostlerError, Unavailable, Uncertain
from hostler.kit.tasks import Closing
from hostler.ports.store import (
    Put,
    TellsLeases,
    check_delete_prefix,
    check_key,
    check_prefix,
    check_put,
    check_range,
    check_revision,
    check_ttl,
    check_txn,
    lease_id,
)
from hostler.sim.time_control import Over

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from concurrent.futures import Future
    from types import TracebackType

    from hostler.ports.store import Comparison, Event, KeyValue, Lease, Operation, Page, Status, Store, TxnResult, Watch
    from hostler.sim.time_control import PacedLoop

T = TypeVar("T")

TIMEOUT = 10.0
"""Real seconds that an operation may take. A world of ten thousand blades can be busy for several seconds."""
AHEAD = 1000
"""Approximate number of events transferred ahead of the reader; the rest waits in the world's watch, which detects
lagging."""


async def across(loop: PacedLoop, do: Callable[[], Awaitable[T]], *, within: float | None = None) -> T:
    """Run `do()` on the paced loop and return its result; withdraw the call if the caller stops waiting.

    TimeoutError: no result within `within` real seconds. Over: the loop has ended.
    """
    answer = loop.submit(do)
    try:
        async with asyncio.timeout(within):
            return await asyncio.wrap_future(answer)
    finally:
        if not answer.done():
            loop.withdraw(answer)


class BridgedClock:
    """The loop's time, for another thread. Sleeping on this clock takes real time."""

    def __init__(self, loop: PacedLoop, *, epoch: float) -> None:
        self._loop, self._epoch = loop, epoch

    def now(self) -> float:
        return self._loop.time()

    def wall(self) -> float:
        return self._epoch + self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class BridgedStore(Closing):
    """The store port over a store on a paced loop. Created, entered and used on one event loop."""

    def __init__(self, store: Store, loop: PacedLoop, *, timeout: float = TIMEOUT) -> None:
        self._store, self._loop, self._timeout = store, loop, timeout
        self._open = False
        self._running: dict[asyncio.Future[Any], None] = {}
        self._watches: dict[BridgedWatch, None] = {}

    async def __aenter__(self) -> Self:
        self._open = True
        return self

    async def aclose(self) -> None:
        self._open = False
        for running in tuple(self._running):
            running.cancel()
        for watch in tuple(self._watches):
            watch.end(Closed("watch: the store was closed"))

    # Reading

    async def get(self, key: str, *, revision: int | None = None) -> KeyValue | None:
        check_key(key)
        check_revision(revision)
        return await self.read(lambda: self._store.get(key, revision=revision))

    async def range(
        self,
        prefix: str,
        *,
        after: str | None = None,
        limit: int | None = None,
        revision: int | None = None,
        keys_only: bool = False,
    ) -> Page:
        check_range(prefix, after, limit, revision)
        return await self.read(
            lambda: self._store.range(prefix, after=after, limit=limit, revision=revision, keys_only=keys_only)
        )

    def watch(self, prefix: str, *, start_revision: int | None = None, previous: bool = True) -> BridgedWatch:
        check_prefix(prefix)
        check_revision(start_revision)
        return BridgedWatch(
            self, prefix, lambda: self._store.watch(prefix, start_revision=start_revision, previous=previous)
        )

    async def status(self) -> Status:
        return await self.read(self._store.status)

    def lease_lateness(self, ttl: float) -> float:
        return self._store.lease_lateness(ttl)

    async def time_left(self, lease: int) -> float:
        """Return the remaining seconds of a lease, for display; 0.0 if the underlying store does not know."""
        store = self._store
        return await self.read(lambda: store.time_left(lease)) if isinstance(store, TellsLeases) else 0.0

    # Writing

    async def put(self, key: str, value: bytes, *, lease: int | Lease | None = None) -> int:
        check_put(key, value)
        number = lease_id(lease)
        return await self.write(lambda: self._store.put(key, value, lease=number))

    async def delete(self, key: str) -> bool:
        check_key(key)
        return await self.write(lambda: self._store.delete(key))

    async def delete_prefix(self, prefix: str) -> int:
        check_delete_prefix(prefix)
        return await self.write(lambda: self._store.delete_prefix(prefix))

    async def txn(
        self, when: Sequence[Comparison], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TxnResult:
        check_txn(when, then, otherwise)
        conditions, first, second = tuple(when), _with_lease_numbers(then), _with_lease_numbers(otherwise)
        return await self.write(lambda: self._store.txn(conditions, first, second))

    async def compact(self, revision: int) -> None:
        check_revision(revision, optional=False)
        await self.write(lambda: self._store.compact(revision))

    async def grant(self, ttl: float) -> BridgedLease:
        ttl = check_ttl(ttl)
        return BridgedLease(self, await self.write(lambda: self._store.grant(ttl)))

    # For leases and watches

    async def read(self, do: Callable[[], Awaitable[T]]) -> T:
        """Run a read on the paced loop. Unavailable: no answer in time."""
        return await self._done(do, writes=False)

    async def write(self, do: Callable[[], Awaitable[T]]) -> T:
        """Run a write on the paced loop. Uncertain: begun, but not answered in time."""
        return await self._done(do, writes=True)

    def opened(self, watch: BridgedWatch) -> PacedLoop:
        """Register a watch that is about to be entered."""
        self._check_open()
        self._watches[watch] = None
        return self._loop

    def left(self, watch: BridgedWatch) -> None:
        """Unregister a watch."""
        self._watches.pop(watch, None)

    # Internals

    def _check_open(self) -> None:
        if not self._open:
            raise Closed("store: not open; use it inside `async with`")

    async def _done(self, do: Callable[[], Awaitable[T]], *, writes: bool) -> T:
        self._check_open()
        answer = self._loop.submit(do)
        here = asyncio.wrap_future(answer)
        self._running[here] = None
        try:
            async with asyncio.timeout(self._timeout):
                return await here
        except TimeoutError:
            if answer.cancelled() or not writes:
                raise Unavailable(f"store: no answer within {self._timeout:g} s; try again later") from None
            raise Uncertain(
                f"store: no answer within {self._timeout:g} s, it may have been written; read before you act"
            ) from None
        except Over as error:
            if error.begun and writes:
                raise Uncertain(f"store: {error}; it may have been written") from None
            raise
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._open and task is not None and not task.cancelling():
                raise self._closed_meanwhile(answer, writes) from None
            raise
        finally:
            del self._running[here]

    def _closed_meanwhile(self, answer: Future[Any], writes: bool) -> HostlerError:
        if answer.cancelled() or not writes:
            return Closed("store: closed during the call")
        return Uncertain("store: closed during the call, it may have been written")


class BridgedLease:
    """A lease of a BridgedStore."""

    def __init__(self, store: BridgedStore, lease: Lease) -> None:
        self._store, self._lease = store, lease
        self.id, self.ttl = lease.id, lease.ttl

    async def keep_alive(self) -> None:
        await self._store.write(self._lease.keep_alive)

    async def revoke(self) -> None:
        await self._store.write(self._lease.revoke)

    async def remaining(self) -> float:
        return await self._store.read(self._lease.remaining)


class BridgedWatch:
    """A watch of a BridgedStore: a task on the paced loop transfers events in batches."""

    def __init__(self, store: BridgedStore, prefix: str, watch: Callable[[], Watch]) -> None:
        self._store, self._prefix, self._make = store, prefix, watch
        self._queue = EventQueue(prefix, sys.maxsize)
        self._taken = 0
        self._pump: _Pump | None = None

    async def __aenter__(self) -> Self:
        loop = self._store.opened(self)
        try:
            self._pump = pump = _Pump(loop, self._prefix, self._make, self._deliver, self._fail)
            await across(loop, pump.enter, within=TIMEOUT)
        except BaseException as error:
            self.end(Closed(f"watch {self._prefix!r}: closed"))
            if isinstance(error, TimeoutError | Over):
                raise Unavailable(f"watch {self._prefix!r}: {error or 'not in time'}; try again later") from None
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end(Closed(f"watch {self._prefix!r}: closed"))

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        if self._pump is None:
            raise Closed(f"watch {self._prefix!r}: not entered")
        while True:
            event = self._queue.take()
            if event is not None:
                self._taken += 1
                if self._taken >= AHEAD // 2:
                    taken, self._taken = self._taken, 0
                    self._pump.make_room(taken)
                return event
            await self._queue.wait()

    def end(self, error: HostlerError) -> None:
        """End the watch after the events that were already transferred."""
        self._queue.fail(error)
        self._store.left(self)
        if self._pump is not None:
            self._pump.leave()

    def _deliver(self, events: list[Event]) -> None:
        self._queue.offer(events, 0)

    def _fail(self, error: HostlerError) -> None:
        self._queue.fail(error)
        self._store.left(self)


class _Pump:
    """The part of a watch on the paced loop. Only the paced loop uses it, except where noted."""

    def __init__(
        self,
        loop: PacedLoop,
        prefix: str,
        make: Callable[[], Watch],
        arrived: Callable[[list[Event]], None],
        failed: Callable[[HostlerError], None],
    ) -> None:
        self._loop, self._prefix, self._make = loop, prefix, make
        self._deliver, self._fail = arrived, failed
        self._here = asyncio.get_running_loop()
        self._batch: list[Event] = []
        self._room, self._roomy = AHEAD, asyncio.Event()
        self._entered = asyncio.Event()
        self._error: HostlerError | None = None
        self._task: asyncio.Task[None] | None = None
        self._over = False

    # From the other thread

    def make_room(self, count: int) -> None:
        """Report that `count` events were read."""

        async def made() -> None:
            self._room += count
            self._roomy.set()

        self._loop.submit(made)

    def leave(self) -> None:
        """Stop the transfer."""

        async def left() -> None:
            self._over = True
            if self._task is not None:
                self._task.cancel()

        if not self._over:
            self._loop.submit(left)

    # On the paced loop

    async def enter(self) -> None:
        """Wait until every later change is delivered."""
        if self._over:
            return
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"bridged watch {self._prefix}")
        await self._entered.wait()
        if self._error is not None:
            raise self._error

    async def _run(self) -> None:
        try:
            async with self._make() as watch:
                self._entered.set()
                async for event in watch:
                    if not self._batch:
                        self._loop.call_soon(self._flush)
                    self._batch.append(event)
                    self._room -= 1
                    while self._room <= 0:
                        self._roomy.clear()
                        await self._roomy.wait()
        except HostlerError as error:
            self._error = error
        finally:
            self._flush()
            if self._entered.is_set() and not self._over:
                self._tell(self._fail, self._error or Unavailable(f"watch {self._prefix!r}: the simulation ended"))
            self._over = True
            self._entered.set()

    def _flush(self) -> None:
        batch, self._batch = self._batch, []
        if batch:
            self._tell(self._deliver, batch)

    def _tell(self, callback: Callable[[Any], None], value: Any) -> None:
        if not self._here.is_closed():
            self._here.call_soon_threadsafe(callback, value)


def _with_lease_numbers(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """Replace lease objects by their numbers: the underlying store does not know the lease objects of this side."""
    return tuple(
        Put(operation.key, operation.value, lease_id(operation.lease)) if isinstance(operation, Put) else operation
        for operation in operations
    )
