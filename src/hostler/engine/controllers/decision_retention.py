"""Retention of the decision log and the audit log: the oldest records go beyond an age or a count."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from hostler.engine.idempotent_writer import instants
from hostler.keys.trace import TRACE

if TYPE_CHECKING:
    from hostler.keys.key import Key
    from hostler.ports.store import KeyValue, Store

KEPT = 7 * 86400.0
MOST = 200_000
"""Records that are kept, however young they are."""
BATCH = 100
"""That go in one transaction."""
SETTLED = 10.0
"""Seconds after which a record counts: a write that was under way may yet put an older one before a younger one."""
RECOUNT_EVERY = 600.0
"""Seconds after which all are counted again: some may have come later than that."""
_PAGE = 1_000


class Attic:
    """Counts the records of `family`, and from then on those that were added. `kept`: seconds; 0: none are kept.

    `most`: None, as many as there are. `values`: `oldest` reads them with their values.
    """

    def __init__(
        self,
        store: Store,
        family: Key[Any] = TRACE,
        *,
        kept: float = KEPT,
        most: int | None = MOST,
        values: bool = False,
    ) -> None:
        self._store, self._family, self.kept, self._most, self._values = store, family, kept, most, values
        self._count, self._last, self._began_at = 0, "", -math.inf

    @property
    def filling(self) -> bool:
        """Whether there are so many that it may soon be too many."""
        return self._most is not None and self._count > self._most // 2

    async def count(self, wall: float) -> int:
        """How many there are, but for the newest. What others remove, or add late, is noticed at the next recount."""
        if not self._last or abs(wall - self._began_at) >= RECOUNT_EVERY:
            self._count, self._last, self._began_at = 0, "", wall
        end = self._key(wall - SETTLED)
        more = True
        while more:
            page = await self._store.range(self._family.prefix(), after=self._last or None, limit=_PAGE, keys_only=True)
            settled = [kv.key for kv in page.items if kv.key < end]
            self._count += len(settled)
            if settled:
                self._last = settled[-1]
            more = page.more and len(settled) == len(page.items)
        return self._count

    async def oldest(self, wall: float) -> tuple[list[KeyValue], str]:
        """Those that go now, at most `BATCH`, and why. To be called after `count`."""
        page = await self._store.range(self._family.prefix(), limit=BATCH, keys_only=not self._values)
        if not self.kept:
            return list(page.items), "none are kept"
        end = self._key(wall - self.kept)
        old = [kv for kv in page.items if kv.key < end]
        if old:
            return old, f"older than {self.kept / 86400:g} days"
        if self._most is None or self._count <= self._most:
            return [], ""
        # A whole batch at once: the round leaves a trace, too, and would be the next one too many.
        return list(page.items), f"more than {self._most:,} of them"

    def _key(self, wall: float) -> str:
        """Before every record of that instant, or of a later one."""
        return self._family.prefix() + "/".join(instants(wall))

    def removed(self, number: int) -> None:
        """So many of them are gone."""
        self._count = max(0, self._count - number)
