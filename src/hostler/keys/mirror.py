"""A family of keys in memory, kept up by a watch.

What it holds was true at `revision`, which follows the store by a moment, or by an outage. Whoever decides from it
writes under the revision it read, so that a decision from old news writes nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

from hostler.errors import Missed, Unavailable, Uncertain
from hostler.keys.entry import Unreadable
from hostler.kit.backoff import Backoff

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from hostler.keys.entry import Change, Entry
    from hostler.keys.key import Key
    from hostler.kit.clock import Clock
    from hostler.ports.store import Store

T = TypeVar("T")


class Mirror(Generic[T]):
    """One family, or the part of it under `leading`. `run` keeps it up until it is cancelled."""

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
        self._backoff = Backoff(0.05, 1.0, rng=rng)
        self._listeners: list[Callable[[str], None]] = []
        self._advanced = asyncio.Event()
        self._listed_at = 0
        self.entries: dict[str, Entry[T]] = {}
        """By key."""
        self.unreadable: dict[str, Unreadable] = {}
        self.revision = 0
        """Everything up to here is in it; 0 until it was listed for the first time."""

    def get(self, **parts: str | int) -> Entry[T] | None:
        """The record as it was last seen."""
        return self.entries.get(self._key.fill(**parts))

    def listen(self, changed: Callable[[str], None]) -> None:
        """Call `changed(key)` after each change, and for each key that a new listing added, changed or removed."""
        self._listeners.append(changed)

    async def ready(self) -> None:
        """Until it was listed for the first time."""
        await self.reached(1)

    async def reached(self, revision: int) -> None:
        """Until it holds everything up to `revision`, as far as that touches this family.

        A write of somebody else does not move it: wait only for revisions of this family's own writes.
        """
        while self.revision < revision:
            await self._advanced.wait()

    async def refresh(self) -> None:
        """Read all of it from the store now: what was written before this was called is in it afterwards."""
        await self._listed()

    async def run(self) -> None:
        """List, then watch; again when events were missed or the store was out of reach."""
        while True:
            try:
                await self._listed()
                self._backoff.reset()
                await self._watched()
            except Missed:
                continue
            except (Unavailable, Uncertain):
                await self._clock.sleep(self._backoff.next())

    # Inside

    async def _listed(self) -> None:
        listing = await self._key.list(self._store, strict=False, **self._leading)  # type: ignore[arg-type]
        if listing.revision < self.revision:
            return  # the watch was faster
        old, self._listed_at = self.entries, listing.revision
        self.entries = {entry.key: entry for entry in listing.entries}
        self.unreadable = {found.key: found for found in listing.unreadable}
        self._advance(max(listing.revision, 1))
        changed = [
            key for key, entry in self.entries.items() if key not in old or old[key].mod_revision != entry.mod_revision
        ]
        for key in (*changed, *(key for key in old if key not in self.entries)):
            self._tell(key)

    async def _watched(self) -> None:
        async with self._key.watch(self._store, start_revision=self.revision + 1, **self._leading) as watch:
            async for change in watch:
                self._take(change)

    def _take(self, change: Change[T]) -> None:
        if change.revision <= self._listed_at:
            return  # the listing has it, or what came after it
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
        advanced, self._advanced = self._advanced, asyncio.Event()
        advanced.set()

    def _tell(self, key: str) -> None:
        for changed in self._listeners:
            changed(key)
