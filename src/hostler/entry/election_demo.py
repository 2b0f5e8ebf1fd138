"""A counter in the store that every leader increments under its fence: `hostler replica --demonstration`.

It demonstrates elections without a control plane, on every storage that supports them. The takeover tests rely on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.errors import LeadershipLost, Unavailable, Uncertain
from hostler.keys.replica import DEMONSTRATION
from hostler.kit.clock import SystemClock
from hostler.model.replica import LeaderRecord, Tally
from hostler.ports.store import Get, KeyValue

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.engine.elections import Leadership
    from hostler.engine.service import Standing
    from hostler.ports.store import Store

COUNT_EVERY = 0.2
TELL_EVERY = 5.0


class Counting:
    """Increments the counter while it leads, and reports it every few seconds."""

    name = "demonstration"

    def __init__(self, store: Store | None, tell: Callable[[str], None]) -> None:
        self._store, self._tell = store, tell
        self._standing: Standing | None = None
        self._silent = False

    async def start(self, standing: Standing) -> None:
        self._standing = standing

    async def run(self) -> None:
        told_at = float("-inf")
        clock = SystemClock()
        while True:
            counted = await self._turn()
            if counted is not None and clock.now() >= told_at + TELL_EVERY:
                told_at = clock.now()
                self._tell(counted)
            await clock.sleep(COUNT_EVERY)

    async def stop(self) -> None:
        pass

    async def _turn(self) -> str | None:
        """Increment once. Return the line to report."""
        if self._standing is None:
            return None
        leadership = self._standing.leadership
        if self._store is None:
            leadership.check()
            return f"leading with fence {leadership.fence}; this storage keeps no data, so nothing is counted"
        try:
            tally = await count(self._store, leadership)
        except (Unavailable, Uncertain) as error:
            if not self._silent:
                self._tell(f"leading, but {error}; retrying")
            self._silent = True
            return None
        self._silent = False
        return None if tally is None else f"counted to {tally.count} under fence {tally.fence}"


async def count(store: Store, leadership: Leadership) -> Tally | None:
    """Increment the counter, guarded by the fence and by the revision read.

    None: another process wrote the counter in between. LeadershipLost: this process no longer leads according to the
    store; nothing was written.
    """
    entry = await DEMONSTRATION.get(store)
    before = 0 if entry is None else entry.value.count
    same = DEMONSTRATION.absent() if entry is None else DEMONSTRATION.unchanged(entry)
    tally = Tally(count=before + 1, fence=leadership.fence, holder=_holder(leadership.record))
    result = await store.txn([leadership.guard(), same], [DEMONSTRATION.put(tally)], [Get(leadership.key)])
    if result.succeeded:
        return tally
    found = result.responses[0]
    if not isinstance(found, KeyValue) or found.value != leadership.record.encode():
        raise LeadershipLost(f"leadership {leadership.key}: fence {leadership.fence} is over; nothing was written")
    return None


def _holder(record: str) -> str:
    return LeaderRecord.decode(record.encode()).holder
