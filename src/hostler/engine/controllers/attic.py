"""Traces that have become too old, or too many. They stand in order of time, so the first ones go first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.engine.write import instants
from hostler.keys.trace import TRACE

if TYPE_CHECKING:
    from hostler.ports.store import Store

KEPT = 7 * 86400.0
MOST = 200_000
"""Traces that are kept, however young they are."""
BATCH = 100
"""That go in one transaction."""
_PAGE = 1_000


class Attic:
    """Counts them once, and from then on those that were added. `kept`: seconds; 0: none are kept."""

    def __init__(self, store: Store, *, kept: float = KEPT, most: int = MOST) -> None:
        self._store, self.kept, self._most = store, kept, most
        self._count, self._last = 0, ""

    async def count(self) -> int:
        """How many there are, about: what somebody else removes, or adds among the older ones, is not noticed."""
        more = True
        while more:
            page = await self._store.range(TRACE.prefix(), after=self._last or None, limit=_PAGE, keys_only=True)
            self._count += len(page.items)
            if page.items:
                self._last = page.items[-1].key
            more = page.more
        return self._count

    async def oldest(self, wall: float) -> tuple[list[str], str]:
        """Keys of those that go now, at most `BATCH`, and why. To be called after `count`."""
        page = await self._store.range(TRACE.prefix(), limit=BATCH, keys_only=True)
        if not self.kept:
            return [kv.key for kv in page.items], "none are kept"
        end = TRACE.prefix() + "/".join(instants(wall - self.kept))
        old = [kv.key for kv in page.items if kv.key < end]
        if old:
            return old, f"they are older than {self.kept / 86400:g} days"
        if self._count <= self._most:
            return [], ""
        # A whole batch at once: each leaves a trace, too, and would be the next one too many.
        return [kv.key for kv in page.items], f"there are more than {self._most:,}"

    def removed(self, number: int) -> None:
        """So many of them are gone."""
        self._count = max(0, self._count - number)
