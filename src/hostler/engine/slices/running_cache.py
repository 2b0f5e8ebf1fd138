"""Cache of the running instances, listed from the driver only when something may have changed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from hostler.errors import HostlerError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostler.kit.clock import Clock
    from hostler.ports.slices import Running, Slices

AGAIN = 0.5
"""Seconds after a failed listing during which the driver is not asked again."""


class RunningCache:
    """Concurrent readers share one listing. `news(name)` is called for each instance that differs from the cache."""

    def __init__(self, slices: Slices, *, clock: Clock, news: Callable[[str], None]) -> None:
        self._slices, self._clock, self._news = slices, clock, news
        self._seen: dict[str, Running] = {}
        self._dirty = True
        self._lock = asyncio.Lock()
        self._learned: dict[str, None] | None = None  # during a listing: names whose cached value is newer than it
        self._failed: tuple[float, HostlerError] | None = None
        self.listings = 0

    def get(self, name: str) -> Running | None:
        """Return the instance as last observed."""
        return self._seen.get(name)

    def names(self) -> tuple[str, ...]:
        """Return the names of all known instances."""
        return tuple(self._seen)

    def doubt(self) -> None:
        """Mark the cache as stale: the next reader lists the instances again."""
        self._dirty = True

    def learn(self, name: str, running: Running | None) -> None:
        """Record the result of a driver call."""
        if running is None:
            self._seen.pop(name, None)
        else:
            self._seen[name] = running
        if self._learned is not None:
            self._learned[name] = None

    async def fresh(self) -> None:
        """Wait until the cache includes every change reported so far. HostlerError: the driver cannot list."""
        if not self._dirty:
            return
        async with self._lock:
            if self._is_doubtful():  # otherwise another task has listed in the meantime
                await self._list()

    async def _list(self) -> None:
        if self._failed is not None and self._clock.now() < self._failed[0] + AGAIN:
            raise self._failed[1]
        learned: dict[str, None] = {}
        self._dirty, self._learned = False, learned
        listed = None
        try:
            listed = await self._slices.list()
        except HostlerError as error:
            self._failed = self._clock.now(), error
            raise
        finally:
            self._learned = None
            self._dirty = self._dirty or listed is None
        self._failed = None
        self.listings += 1
        self._take(listed, learned)

    def _is_doubtful(self) -> bool:
        return self._dirty

    def _take(self, listed: Sequence[Running], learned: dict[str, None]) -> None:
        old, new = self._seen, {running.run.id: running for running in listed}
        for name in learned:
            known = old.get(name)
            if known is None:
                new.pop(name, None)
            else:
                new[name] = known
        self._seen = new
        for name in [*new, *(name for name in old if name not in new)]:
            if not _same(old.get(name), new.get(name)):
                self._news(name)


def _same(one: Running | None, other: Running | None) -> bool:
    if one is None or other is None:
        return one is other
    return one == other or one == msgspec.structs.replace(other, in_flight=one.in_flight)
