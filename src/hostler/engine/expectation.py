"""Read-your-writes for caches: a writer waits until the caches contain its write before it decides from them again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostler.keys.mirror import Mirror
    from hostler.kit.clock import Clock

LAG = 1.0
"""Seconds by which caches may differ from each other and lag behind our own writes."""
_LOOK = 0.005


class Expected(msgspec.Struct, frozen=True):
    """A key that exists, or (not `there`) does not exist, since `revision`; 0: since an unknown revision."""

    mirror: Mirror[Any]
    key: str
    revision: int
    there: bool
    stale: int = 0
    """The revision that the cache held when the key was found to be deleted."""

    def is_known(self) -> bool:
        """Return whether the cache reflects the write."""
        entry = self.mirror.entries.get(self.key)
        if not self.revision:
            return entry is None or entry.mod_revision != self.stale
        if entry is not None:
            return entry.mod_revision >= self.revision if self.there else entry.mod_revision > self.revision
        if self.key in self.mirror.unreadable:
            return True
        return self.mirror.revision > self.revision or (not self.there and self.mirror.revision == self.revision)


async def known(expected: Iterable[Expected], clock: Clock) -> bool:
    """Wait until the caches reflect all expected writes; False: they did not in time."""
    try:
        async with asyncio.timeout(LAG):
            for one in expected:
                while not one.is_known():
                    if one.revision:
                        await one.mirror.reached(one.revision)
                    if not one.is_known():  # only the first of several events of that revision has arrived
                        await clock.sleep(_LOOK)
    except TimeoutError:
        return False
    return True
