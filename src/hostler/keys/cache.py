"""An in-memory copy of a key family, kept current by a watch.

The copy was correct at `revision`, which lags behind the store by a moment, or by the length of an outage. A controller
that decides from it writes under the revision it read, so that a decision from stale data writes nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

from hostler.errors import Missed, Unavailable, Uncertain
from hostler.keys.entry import Unreadable
from hostler.kit.rate_limit import Backoff

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from hostler.keys.entry import Change, Entry
    from hostler.keys.key import Key
    from hostler.kit.clock import Clock
    from hostler.ports.store import Store

T = TypeVar("T")
_NEVER = 2**63


class Cache(Generic[T]):
    """A cache of one family, or of the part of it under `leading`. `run` keeps it current until cancelled."""

    def __init__(
        self,
        store: Store,
        key: Key[T],
        *,
        clock: Clock,
        rng: random.Random | None = None,
        **leading: str | int,
    ) -> None:
        self._store, self._key, self._clock, self._leading = store, key, clock, leading
        self._rng = rng
        self.family = key
        self._backoff = Backoff(0.05, 1.0, rng=rng)
        self._listeners: list[Callable[[str], None]] = []
        self._waiting: dict[asyncio.Future[None], int] = {}  # waiters, and the revision that each waits for
        self._next = _NEVER  # the lowest of these revisions
        self._listed_at = 0
        self.entries: dict[str, Entry[T]] = {}
        """By key."""
        self.unreadable: dict[str, Unreadable] = {}
        self.revision = 0
        """The cache contains everything up to this revision; 0 until it was listed for the first time."""

    def get(self, **parts: str | int) -> Entry[T] | None:
        """Return the record as last observed."""
        return self.entries.get(self._key.fill(**parts))

    def listen(self, changed: Callable[[str], None]) -> Callable[[], None]:
        """Call `changed(key)` after each change, and for each key that a new listing added, changed or removed.

        It may be called between two events of one transaction: record the key now, and read the records later. The
        returned function ends the subscription.
        """
        self._listeners = [*self._listeners, changed]

        def end() -> None:
            self._listeners = [other for other in self._listeners if other is not changed]

        return end

    def is_news(self, entry: Entry[T]) -> bool:
        """Return whether the entry arrived through the watch, and not in a listing."""
        return entry.mod_revision > self._listed_at

    async def ready(self) -> None:
        """Wait until the family was listed for the first time."""
        await self.reached(1)

    async def reached(self, revision: int) -> None:
        """Wait until the cache contains everything up to `revision`, as far as that touches this family.

        Writes to other families do not advance it: wait only for revisions of this family's own writes.
        """
        while self.revision < revision:
            advanced = asyncio.get_running_loop().create_future()
            self._waiting[advanced], self._next = revision, min(self._next, revision)
            try:
                await advanced
            finally:
                self._waiting.pop(advanced, None)

    async def refresh(self) -> None:
        """Read the whole family from the store: afterwards the cache contains everything written before this call.

        Unavailable: the store cannot be reached, and the cache is unchanged.
        """
        backoff = Backoff(0.01, 1.0, rng=self._rng)
        while True:
            try:
                await self._list()
            except Missed:  # compacted between two pages
                await self._clock.sleep(backoff.next())
            else:
                return

    async def run(self) -> None:
        """List, then watch; start over when events were missed or the store could not be reached."""
        while True:
            try:
                await self._list()
                await self._follow_watch()
            except (Missed, Unavailable, Uncertain):
                await self._clock.sleep(self._backoff.next())

    # Internal

    async def _list(self) -> None:
        before = self.revision
        listing = await self._key.list(self._store, strict=False, **self._leading)  # type: ignore[arg-type]
        if before <= listing.revision < self.revision:
            return  # the watch, or another listing, was faster
        # Lower than the revision that was known before the listing began: the store was reset to an older state.
        back = listing.revision < before
        old, self._listed_at = self._revisions(), listing.revision
        self.entries = {entry.key: entry for entry in listing.entries}
        self.unreadable = {found.key: found for found in listing.unreadable}
        if back:
            self.revision = 0
        self._advance(max(listing.revision, 1))
        new = self._revisions()
        for key in [key for key, revision in new.items() if old.get(key) != revision]:
            self._tell(key)
        for key in [key for key in old if key not in new]:
            self._tell(key)

    def _revisions(self) -> dict[str, int]:
        revisions = {key: entry.mod_revision for key, entry in self.entries.items()}
        revisions.update((key, found.kv.mod_revision) for key, found in self.unreadable.items())
        return revisions

    async def _follow_watch(self) -> None:
        watching = self._key.watch(self._store, start_revision=self.revision + 1, previous=False, **self._leading)
        async with watching as watch:
            async for change in watch:
                self._take(change)
                self._backoff.reset()  # not earlier: a watch that ends at once must not cause a listing each time

    def _take(self, change: Change[T]) -> None:
        if change.revision <= self._listed_at:
            return  # the listing already contains it, or a later change
        self.entries.pop(change.key, None)
        self.unreadable.pop(change.key, None)
        if isinstance(change.current, Unreadable):
            self.unreadable[change.key] = change.current
        elif change.current is not None:
            self.entries[change.key] = change.current
        self._advance(change.revision)
        self._tell(change.key)

    def _advance(self, revision: int) -> None:
        self.revision = max(self.revision, revision)
        if self.revision < self._next:
            return  # wake only waiters whose revision is reached: there are many changes
        for advanced, wanted in self._waiting.items():
            if wanted <= self.revision and not advanced.done():
                advanced.set_result(None)
        self._next = min((wanted for wanted in self._waiting.values() if wanted > self.revision), default=_NEVER)

    def _tell(self, key: str) -> None:
        for changed in self._listeners:
            changed(key)
