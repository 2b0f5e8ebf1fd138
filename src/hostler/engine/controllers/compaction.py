"""Compaction: the leader compacts the history of a store that does not do so itself.

Embedded stores keep an hour of history and delete the rest. etcd keeps everything until a client requests a compaction.
The leader notes the store's revision every few seconds, and compacts to the revision of an hour ago, or to a later one
if there are too many revisions since. A watch resumes from the last revision that the server reported, which is minutes
old at most; if a watch of this process needs older history, it is kept, up to `PATIENCE` times the limits.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from hostler.engine.service import leadership_of
from hostler.errors import Closed, Compacted, HostlerError, LeadershipLost
from hostler.keys.families import CLUSTER

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.engine.service import Standing
    from hostler.kit.clock import Clock
    from hostler.ports.store import Maintained, Store

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
