"""Delivers committed changes to the watches of this process.

A watch that starts in the past reads history, at its reader's pace, until it has caught up, and then joins the live
stream. The cost of a change does not grow with the number of watches, but with the number that match it: watches are
found by looking up the key's own prefixes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from hostler.errors import Closed, Compacted, HostlerError, Lagged, Unavailable
from hostler.ports.store import check_prefix, check_revision

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence
    from types import TracebackType

    from hostler.ports.store import Event

C = TypeVar("C")

BACKLOG = 10_000
"""Events that may wait in one watch before it ends with Lagged."""
CHUNK = 500
"""Approximate number of events that a watch reads from history at once."""
RETRY = 0.05
"""Seconds after which a failed read of history is repeated."""


class History(Protocol):
    """What a store must offer to serve watches. All methods are called on the event loop."""

    def current_revision(self) -> int:
        """Return the newest revision that readers can see."""

    def compact_revision(self) -> int:
        """Return the revision before which history is gone; 0 if none is."""

    def changes(self, prefix: str, start_revision: int, limit: int) -> tuple[Sequence[Event], int]:
        """Return about `limit` events under `prefix` from `start_revision` on, and the revision to continue from.

        Whole transactions only. No events and a revision past the newest: caught up. Compacted: too old.
        """


class EventQueue:
    """Events between producer and reader; it ends with an error."""

    def __init__(self, prefix: str, backlog: int = BACKLOG) -> None:
        self.prefix = prefix
        self._backlog = backlog
        self.events: deque[Event] = deque()
        """Unread events; a reader may take from the front."""
        self._failure: HostlerError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def ended(self) -> bool:
        """Whether no further event is accepted."""
        return self._failure is not None

    def offer(self, events: Iterable[Event], revision: int) -> bool:
        """Queue the events of one transaction; False if the reader lags and the queue has ended.

        A transaction of any size is accepted while the queue is short, so that a large one alone never ends a watch.
        """
        if self._failure is not None:
            return False
        if len(self.events) >= self._backlog:
            self.fail(Lagged(self.prefix, revision))
            return False
        self.events.extend(events)
        self._wake()
        return True

    def fail(self, error: HostlerError) -> None:
        """End the queue: queued events can still be read, then `error` is raised. The first end counts."""
        if self._failure is None:
            self._failure = error
            self._wake()

    def take(self) -> Event | None:
        """Return the next event; None if there is none yet; raises the error that ended the queue."""
        if self.events:
            return self.events.popleft()
        if self._failure is not None:
            raise self._failure
        return None

    async def wait(self) -> None:
        """Wait until there is something to take."""
        if self.events or self._failure is not None:
            return
        if self._waiter is not None:
            raise RuntimeError(f"watch {self.prefix!r}: read by two tasks; open a watch for each")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class LocalWatch:
    """A watch on a store that lives in this process."""

    def __init__(self, hub: WatchHub, prefix: str, start_revision: int | None) -> None:
        check_prefix(prefix)
        check_revision(start_revision)
        self.prefix = prefix
        self.next_revision = start_revision or 0
        self._hub = hub
        self._queue = EventQueue(prefix, hub.backlog)
        self._from_start = start_revision is not None
        self._live = False

    async def __aenter__(self) -> Self:
        self._hub.check_open()
        history = self._hub.history
        if not self._from_start:
            self.next_revision = history.current_revision() + 1
            self._join()
        elif self.next_revision < history.compact_revision():
            raise Compacted(history.compact_revision())
        self._hub.register(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.fail(Closed(f"watch {self.prefix!r}: it has been exited"))
        self._hub.unregister(self)

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        queue = self._queue
        if queue.events:
            return queue.events.popleft()
        while True:
            event = queue.take()
            if event is not None:
                return event
            if self._live:
                await self._queue.wait()
            else:
                await asyncio.sleep(self._catch_up())

    def deliver(self, events: Sequence[Event], revision: int) -> None:
        """Queue the events of one live transaction, unless they were already read from history."""
        if revision < self.next_revision:
            return
        if self._queue.offer(events, self.next_revision):
            self.next_revision = revision + 1
        else:
            self._hub.unregister(self)

    def fail(self, error: HostlerError) -> None:
        """End the watch."""
        self._queue.fail(error)

    def _catch_up(self) -> float:
        """Read some history and return the seconds to wait before the next read."""
        history = self._hub.history
        try:
            events, resume = history.changes(self.prefix, self.next_revision, CHUNK)
        except Unavailable:
            return RETRY  # an outage does not end a watch
        except HostlerError as error:
            self.fail(error)
            return 0.0
        if events:
            self._queue.offer(events, self.next_revision)
            self.next_revision = max(self.next_revision, resume)
        elif resume > history.current_revision():
            self._join()
        else:
            self.next_revision = max(self.next_revision, resume)
        return 0.0

    def _join(self) -> None:
        self._live = True
        self._hub.join(self)


class WatchHub:
    """The watches of one store in this process, found by prefix."""

    def __init__(self, history: History, *, backlog: int = BACKLOG, entered: Callable[[], None] | None = None) -> None:
        self.history = history
        self.backlog = backlog
        self._entered = entered  # called when a watch is entered: check for other processes' changes more often
        self._open = False
        self._watches: dict[LocalWatch, None] = {}
        self._by_prefix: dict[str, dict[LocalWatch, None]] = {}
        self._odd: list[int] = []  # lengths of prefixes that do not end with a slash

    def __len__(self) -> int:
        return len(self._watches)

    @property
    def listening(self) -> bool:
        """Whether any watch is served by `publish`."""
        return bool(self._by_prefix)

    def open(self) -> None:
        """Allow watches to be entered."""
        self._open = True

    def check_open(self) -> None:
        """Raise Closed unless the store is open."""
        if not self._open:
            raise Closed("store: not open; use it inside `async with hostler.open_store(url) as store`")

    def close(self) -> None:
        """End every watch."""
        self._open = False
        self._end(list(self._watches), Closed("watch: the store was closed"))

    def fail(self, error: HostlerError) -> None:
        """End every watch that is served by `publish`, which cannot continue; those that read history can."""
        self._end([watch for peers in self._by_prefix.values() for watch in peers], error)

    def _end(self, watches: list[LocalWatch], error: HostlerError) -> None:
        for watch in watches:
            watch.fail(error)
            self.unregister(watch)

    def watch(self, prefix: str, start_revision: int | None) -> LocalWatch:
        """Return a watch, not yet entered."""
        return LocalWatch(self, prefix, start_revision)

    def publish(
        self, revision: int, changes: Iterable[C], *, key: Callable[[C], str], event: Callable[[C], Event]
    ) -> None:
        """Deliver one committed transaction. `event` is called only for changes that match a watch."""
        if not self._by_prefix:
            return
        wanted: dict[LocalWatch, list[Event]] = {}
        for change in changes:
            watches = self._interested_watches(key(change))
            if watches:
                built = event(change)
                for watch in watches:
                    if watch in wanted:
                        wanted[watch].append(built)
                    else:
                        wanted[watch] = [built]
        for watch, events in wanted.items():
            watch.deliver(events, revision)

    def register(self, watch: LocalWatch) -> None:
        """Register a watch that was entered."""
        self._watches[watch] = None
        if self._entered is not None:
            self._entered()

    def join(self, watch: LocalWatch) -> None:
        """Serve the watch by `publish` from now on."""
        peers = self._by_prefix.get(watch.prefix)
        if peers is None:
            peers = self._by_prefix[watch.prefix] = {}
            self._note_odd(watch.prefix)
        peers[watch] = None

    def unregister(self, watch: LocalWatch) -> None:
        """Remove a watch."""
        self._watches.pop(watch, None)
        peers = self._by_prefix.get(watch.prefix)
        if peers is None:
            return
        peers.pop(watch, None)
        if not peers:
            del self._by_prefix[watch.prefix]
            self._note_odd(watch.prefix)

    def _note_odd(self, prefix: str) -> None:
        if not prefix.endswith("/"):
            self._odd = sorted({len(other) for other in self._by_prefix if not other.endswith("/")})

    def _interested_watches(self, key: str) -> list[LocalWatch]:
        found: list[LocalWatch] = []
        by_prefix = self._by_prefix
        for length in self._odd:
            if length > len(key):
                break
            if key[length - 1 : length] != "/" and (peers := by_prefix.get(key[:length])):
                found += peers
        end = key.find("/") + 1
        while end:
            if peers := by_prefix.get(key[:end]):
                found += peers
            end = key.find("/", end) + 1
        return found
