"""Delivers committed changes to the watches of this process.

A watch that starts in the past reads history, at its reader's pace, until it has caught up, and joins the live stream
then. The cost of a change does not grow with the number of watches, but with the number that want it: watches are
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
"""Events that may wait in one watch before its reader is told that it lags."""
CHUNK = 500
"""Events that a watch reads from history at once, about."""
RETRY = 0.05
"""Seconds after which history that could not be read is looked at again."""


class History(Protocol):
    """What a store must offer so that watches can be served from it. All of it is called on the event loop."""

    def current_revision(self) -> int:
        """The newest revision that readers can see."""

    def compact_revision(self) -> int:
        """History before this is gone; 0 if none is."""

    def changes(self, prefix: str, start_revision: int, limit: int) -> tuple[Sequence[Event], int]:
        """About `limit` events under `prefix` from `start_revision` on, and the revision to go on from.

        Whole transactions only. No events and a revision past the newest: caught up. Compacted: too old.
        """


class EventQueue:
    """Events between the one who delivers and the one who reads, with an end that is an error."""

    def __init__(self, prefix: str, backlog: int = BACKLOG) -> None:
        self.prefix = prefix
        self._backlog = backlog
        self.events: deque[Event] = deque()
        """To be read; a reader may take from the front."""
        self._failure: HostlerError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def ended(self) -> bool:
        """No further event will be taken."""
        return self._failure is not None

    def offer(self, events: Iterable[Event], revision: int) -> bool:
        """Hand over the events of one transaction; False if the reader lags and the queue has ended.

        A transaction of any size is taken while the queue is short, so that a large one alone never ends a watch.
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
        """End the queue: what was handed over is still read, then `error` is raised. The first end counts."""
        if self._failure is None:
            self._failure = error
            self._wake()

    def take(self) -> Event | None:
        """The next event; None if there is none yet; raises how the queue ended."""
        if self.events:
            return self.events.popleft()
        if self._failure is not None:
            raise self._failure
        return None

    async def wait(self) -> None:
        """Until there is something to take."""
        if self.events or self._failure is not None:
            return
        if self._waiter is not None:
            raise RuntimeError(f"watch {self.prefix!r}: two tasks read it; open a watch for each")
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
        self._hub.opened(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.fail(Closed(f"watch {self.prefix!r}: it was left"))
        self._hub.left(self)

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
        """Take the events of one live transaction, unless history already gave them."""
        if revision < self.next_revision:
            return
        if self._queue.offer(events, self.next_revision):
            self.next_revision = revision + 1
        else:
            self._hub.left(self)

    def fail(self, error: HostlerError) -> None:
        """End the watch."""
        self._queue.fail(error)

    def _catch_up(self) -> float:
        """Read some history; the seconds to wait before the next look."""
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
        self._entered = entered  # somebody watches now: look for other processes' changes more often
        self._open = False
        self._watches: dict[LocalWatch, None] = {}
        self._by_prefix: dict[str, dict[LocalWatch, None]] = {}
        self._odd: list[int] = []  # lengths of those that do not end with a slash

    def __len__(self) -> int:
        return len(self._watches)

    @property
    def listening(self) -> bool:
        """Whether any watch is served by `publish`."""
        return bool(self._by_prefix)

    def open(self) -> None:
        """Let watches be entered."""
        self._open = True

    def check_open(self) -> None:
        """Closed: the store is not open."""
        if not self._open:
            raise Closed("store: it is not open; use it inside `async with hostler.open_store(url) as store`")

    def close(self) -> None:
        """End every watch."""
        self._open = False
        self._end(list(self._watches), Closed("watch: the store was closed"))

    def fail(self, error: HostlerError) -> None:
        """End every watch that is served by `publish`, which cannot go on; those that read history can."""
        self._end([watch for peers in self._by_prefix.values() for watch in peers], error)

    def _end(self, watches: list[LocalWatch], error: HostlerError) -> None:
        for watch in watches:
            watch.fail(error)
            self.left(watch)

    def watch(self, prefix: str, start_revision: int | None) -> LocalWatch:
        """A watch, not yet entered."""
        return LocalWatch(self, prefix, start_revision)

    def publish(
        self, revision: int, changes: Iterable[C], *, key: Callable[[C], str], event: Callable[[C], Event]
    ) -> None:
        """Deliver one committed transaction. `event` is asked only for changes that some watch wants."""
        if not self._by_prefix:
            return
        wanted: dict[LocalWatch, list[Event]] = {}
        for change in changes:
            watches = self._interested(key(change))
            if watches:
                built = event(change)
                for watch in watches:
                    if watch in wanted:
                        wanted[watch].append(built)
                    else:
                        wanted[watch] = [built]
        for watch, events in wanted.items():
            watch.deliver(events, revision)

    def opened(self, watch: LocalWatch) -> None:
        """A watch was entered."""
        self._watches[watch] = None
        if self._entered is not None:
            self._entered()

    def join(self, watch: LocalWatch) -> None:
        """From now on the watch is served by `publish`."""
        peers = self._by_prefix.get(watch.prefix)
        if peers is None:
            peers = self._by_prefix[watch.prefix] = {}
            self._note_odd(watch.prefix)
        peers[watch] = None

    def left(self, watch: LocalWatch) -> None:
        """The watch wants nothing more."""
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

    def _interested(self, key: str) -> list[LocalWatch]:
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
