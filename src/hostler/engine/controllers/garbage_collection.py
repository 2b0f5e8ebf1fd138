"""Garbage collection: compaction of the store's history, and retention of the decision log and the audit log.

Embedded stores keep an hour of history and delete the rest. etcd keeps everything until a client requests a compaction.
The leader notes the store's revision every few seconds, and compacts to the revision of an hour ago, or to a later one
if there are too many revisions since. A watch resumes from the last revision that the server reported, which is minutes
old at most; if a watch of this process needs older history, it is kept, up to `PATIENCE` times the limits.

Retention deletes the oldest decisions and audit entries beyond an age or a count.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any

from hostler.engine.idempotent_writer import instants
from hostler.engine.service import leadership_of
from hostler.errors import Closed, Compacted, HostlerError, LeadershipLost
from hostler.keys.families import CLUSTER, TRACE

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.engine.service import Standing
    from hostler.keys.key import Key
    from hostler.kit.clock import Clock
    from hostler.ports.store import KeyValue, Maintained, Store


EVERY = 10.0
PATIENCE = 2
LEAST = 1_000
"""Smallest number of revisions that justifies a compaction."""


class Compaction:
    """Compacts the store. `age`: seconds of history to keep; `revisions`: at most this many."""

    name = "compaction"

    def __init__(
        self,
        store: Store,
        watched: Maintained,
        *,
        clock: Clock,
        age: float,
        revisions: int,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._store, self._watched, self._clock, self._tell = store, watched, clock, tell
        self._age, self._revisions = age, revisions
        self._noted: deque[tuple[float, int]] = deque()  # (monotonic time, revision)
        self._compacted = 0
        self._standing: Standing | None = None
        self.counters: dict[str, int] = {}

    async def start(self, standing: Standing) -> None:
        """Remember the replica. The first compaction is considered in `run`."""
        self._standing = standing

    async def run(self) -> None:
        """Run until cancelled. LeadershipLost: this process no longer leads."""
        while True:
            try:
                await self.look()
            except (LeadershipLost, Closed):
                raise
            except HostlerError as error:
                self._tell(f"compaction: {error}; it will be tried again")
            await self._clock.sleep(EVERY)

    async def stop(self) -> None:
        """Do nothing: no resources are held."""

    async def look(self) -> None:
        """Note the current revision, and compact if that removes enough."""
        leadership_of(self._standing, self.name)
        page = await self._store.range(CLUSTER.fill(), limit=1, keys_only=True)
        self._noted.append((self._clock.now(), page.revision))
        target = self._target(page.revision)
        if target < self._compacted + LEAST:
            return
        try:
            await self._store.compact(target)
        except Compacted as done:  # by an operator, or by etcd itself
            self._compacted = done.revision
            return
        self._compacted = target
        self.counters["compactions"] = self.counters.get("compactions", 0) + 1

    def _target(self, now: int) -> int:
        """Return the revision to compact to; 0: none."""
        wanted = self._bound(now, 1)
        needed = self._watched.oldest_needed()
        if needed is not None and needed < wanted:
            wanted = max(needed, self._bound(now, PATIENCE))
        while len(self._noted) > 1 and self._noted[1][0] <= self._clock.now() - PATIENCE * self._age:
            self._noted.popleft()
        return wanted

    def _bound(self, now: int, times: int) -> int:
        """Return the first revision that is kept with `times` the limits."""
        before = self._clock.now() - times * self._age
        by_age = max((revision for at, revision in self._noted if at <= before), default=0)
        return max(by_age, now - times * self._revisions, 0)


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

    def record_removal(self, number: int) -> None:
        """Report that records were deleted."""
        self._count = max(0, self._count - number)
