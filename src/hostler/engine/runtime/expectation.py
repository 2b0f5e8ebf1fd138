"""Read-your-writes for caches: a controller decides about a name only from caches that contain its own writes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.ports.store import Delete, KeyValue, Put

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostler.keys.entry import Entry
    from hostler.keys.mirror import Mirror
    from hostler.kit.clock import Clock
    from hostler.ports.store import Operation, Response

LAG = 1.0
"""Seconds by which caches may differ from each other and lag behind our own writes."""
_LOOK = 0.005


class Expectation(msgspec.Struct, frozen=True):
    """A key that exists, or (not `there`) does not exist, since `revision`; 0: since an unknown revision."""

    mirror: Mirror[Any]
    key: str
    revision: int
    there: bool
    stale: int = 0
    """The revision that the cache held when the key was found to be deleted."""

    def is_met(self) -> bool:
        """Return whether the cache contains the write, or a later one of this key."""
        entry = self.mirror.entries.get(self.key)
        if not self.revision:
            return entry is None or entry.mod_revision != self.stale
        if entry is not None:
            return entry.mod_revision >= self.revision if self.there else entry.mod_revision > self.revision
        if (unreadable := self.mirror.unreadable.get(self.key)) is not None:
            return unreadable.kv.mod_revision >= self.revision
        return self.mirror.revision > self.revision or (not self.there and self.mirror.revision == self.revision)


class Expectations:
    """What the caches must contain before the next decision about each name.

    Once `is_behind(name)` returns False, or `caught_up(name)` True, the caches contain every write and every finding
    that was recorded for the name, or a later state of the same keys. That holds per key: a cache that received only
    the first of several events of one revision is still behind. Nothing is promised about keys of other families, about
    writes of other processes, or about a store that was reset to an older state.
    """

    def __init__(self, mirrors: Sequence[Mirror[Any]], *, clock: Clock) -> None:
        """`mirrors`: the caches that decisions are made from."""
        self._mirrors = tuple((mirror.family.prefix(), mirror) for mirror in mirrors)
        self._clock = clock
        self._expected: dict[str, list[Expectation]] = {}

    def mirror_of(self, key: str) -> Mirror[Any] | None:
        """Return the cache that has this key, if there is one."""
        for prefix, mirror in self._mirrors:
            if key.startswith(prefix) and mirror.family.matches(key):
                return mirror
        return None

    def wrote(self, name: str, revision: int, operations: Iterable[Operation]) -> None:
        """Expect a transaction that was committed in this revision."""
        now = [
            Expectation(mirror, operation.key, revision, isinstance(operation, Put))
            for operation in operations
            if isinstance(operation, Put | Delete) and (mirror := self.mirror_of(operation.key)) is not None
        ]
        # A cache that has this write has all earlier writes of its family.
        later = [one.mirror for one in now]
        expected = [one for one in self._expected.get(name, ()) if one.mirror not in later] + now
        if expected:
            self._expected[name] = expected

    def read(self, name: str, *entries: Entry[Any] | None) -> None:
        """Expect records that were read from the store: they may contain own writes that were not acknowledged."""
        for entry in entries:
            if entry is not None and (mirror := self.mirror_of(entry.key)) is not None:
                expected = Expectation(mirror, entry.key, entry.mod_revision, there=True)
                self._expected.setdefault(name, []).append(expected)

    def found(self, name: str, mirror: Mirror[Any], key: str, kv: Response) -> None:
        """Expect what was found at a key of a cache in place of what the cache contained."""
        if isinstance(kv, KeyValue):
            expected = Expectation(mirror, key, kv.mod_revision, there=True)
        else:
            entry = mirror.entries.get(key)
            expected = Expectation(mirror, key, 0, there=False, stale=0 if entry is None else entry.mod_revision)
        self._expected.setdefault(name, []).append(expected)

    def is_behind(self, name: str) -> bool:
        """Return whether a cache lacks something that is expected for the name."""
        if not all(one.is_met() for one in self._expected.get(name, ())):
            return True
        self._expected.pop(name, None)
        return False

    async def caught_up(self, name: str) -> bool:
        """Wait until the caches contain what is expected for the name; False: they did not within `LAG` seconds."""
        try:
            async with asyncio.timeout(LAG):
                for one in self._expected.get(name, ()):
                    while not one.is_met():
                        if one.revision:
                            await one.mirror.reached(one.revision)
                        if not one.is_met():  # only the first of several events of that revision has arrived
                            await self._clock.sleep(_LOOK)
        except TimeoutError:
            return False
        self._expected.pop(name, None)
        return True
