"""Retention of the decision log and the audit log: delete the oldest records beyond an age or a count."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from hostler.engine.idempotent_writer import instants
from hostler.keys.families import TRACE

if TYPE_CHECKING:
    from hostler.keys.key import Key
    from hostler.ports.store import KeyValue, Store

KEPT = 7 * 86400.0
MOST = 200_000
"""Largest number of records to keep, regardless of age."""
BATCH = 100
"""Number of records deleted in one transaction."""
SETTLED = 10.0
"""Seconds after which a record is counted: a write in progress may still insert an older record before a newer one."""
RECOUNT_EVERY = 600.0
"""Seconds after which all records are counted again: some may have been inserted late."""
_PAGE = 1_000


class DecisionRetention:
    """Counts the records of `family`, incrementally after the first time. `kept`: seconds; 0: none are kept.

    `most`: None: no limit. `values`: `oldest` reads the values, too.
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
        """Return whether more than half of the limit is used."""
        return self._most is not None and self._count > self._most // 2

    async def count(self, wall: float) -> int:
        """Return the number of records except the newest.

        Records removed by others or inserted late count at the next recount.
        """
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
        """Return the records to delete now, at most `BATCH`, and the reason. Call it after `count`."""
        page = await self._store.range(self._family.prefix(), limit=BATCH, keys_only=not self._values)
        if not self.kept:
            return list(page.items), "none are kept"
        end = self._key(wall - self.kept)
        old = [kv for kv in page.items if kv.key < end]
        if old:
            return old, f"older than {self.kept / 86400:g} days"
        if self._most is None or self._count <= self._most:
            return [], ""
        # A whole batch at once: the retention pass writes a decision record, too, which would exceed the limit again.
        return list(page.items), f"more than {self._most:,} of them"

    def _key(self, wall: float) -> str:
        """Return a key before every record of that instant or a later one."""
        return self._family.prefix() + "/".join(instants(wall))

    def removed(self, number: int) -> None:
        """Report that records were deleted."""
        self._count = max(0, self._count - number)
