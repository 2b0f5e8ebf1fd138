"""What the mirrors will know: whoever wrote something waits for it before deciding from them again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostler.keys.mirror import Mirror
    from hostler.kit.clock import Clock

LAG = 1.0
"""Seconds that mirrors may be apart, and behind what we wrote."""
_LOOK = 0.005


class Expected(msgspec.Struct, frozen=True):
    """A key that is there, or (not `there`) is gone, since `revision`; 0: since nobody knows when."""

    mirror: Mirror[Any]
    key: str
    revision: int
    there: bool
    stale: int = 0
    """The revision that the mirror had when the key was found to be gone."""

    def is_known(self) -> bool:
        """Whether the mirror has it."""
        entry = self.mirror.entries.get(self.key)
        if not self.revision:
            return entry is None or entry.mod_revision != self.stale
        if entry is not None:
            return entry.mod_revision >= self.revision if self.there else entry.mod_revision > self.revision
        if self.key in self.mirror.unreadable:
            return True
        return self.mirror.revision > self.revision or (not self.there and self.mirror.revision == self.revision)


async def known(expected: Iterable[Expected], clock: Clock) -> bool:
    """Until the mirrors know all of it; False: they do not in time."""
    try:
        async with asyncio.timeout(LAG):
            for one in expected:
                while not one.is_known():
                    if one.revision:
                        await one.mirror.reached(one.revision)
                    if not one.is_known():  # the first of many of that revision has come
                        await clock.sleep(_LOOK)
    except TimeoutError:
        return False
    return True
