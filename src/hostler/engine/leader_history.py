"""History of leaders: each leader records when it began, its predecessor and, if possible, its release.

For users only. Nothing depends on it or waits for it: if the store does not answer, the write is retried.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from hostler.errors import HostlerError
from hostler.keys.families import TAKEOVER
from hostler.kit.clock import SystemClock
from hostler.kit.rate_limit import Backoff
from hostler.model.replica import Farewell, Takeover

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.engine.leadership import Leadership
    from hostler.engine.service import Standing
    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.ports.store import Operation, Store

KEPT = 50
"""Number of leaderships that are kept."""
PATIENCE = 1.0
"""Seconds that recording the release may take."""


class LeaderHistory:
    """Records the leaderships of a replica. Writes carry the guard, so a leader whose term is over writes nothing."""

    name = "chronicle"

    def __init__(self, store: Store, *, holder: str, address: str, clock: Clock | None = None) -> None:
        self._store, self._holder, self._address = store, holder, address
        self._clock: Clock = clock or SystemClock()
        self._leadership: Leadership | None = None
        self._begun_at = 0.0
        self._written: Takeover | None = None

    async def start(self, standing: Standing) -> None:
        """Take the start time; the record is written later."""
        self._leadership, self._begun_at = standing.leadership, self._clock.wall()

    async def run(self) -> None:
        """Write the record, then wait for cancellation."""
        backoff = Backoff(0.1, 10.0)
        while self._leadership is not None and self._written is None and self._leadership.held:
            try:
                self._written = await self._begun(self._leadership)
            except HostlerError:  # nothing depends on it, and the write may be repeated
                await self._clock.sleep(backoff.next())
            else:
                break
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """Record an orderly end, if this replica still leads."""
        leadership, takeover = self._leadership, self._written
        if leadership is None or takeover is None or not leadership.held:
            return
        over = msgspec.structs.replace(takeover, released_at=self._clock.wall())
        with suppress(HostlerError, TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await self._store.txn([leadership.guard()], [TAKEOVER.put(over, fence=over.fence)])

    async def _begun(self, leadership: Leadership) -> Takeover | None:
        """Return what was written; None: another process leads already."""
        listing = await TAKEOVER.list(self._store, strict=False)
        known = sorted(listing.entries, key=_fence)
        before = [entry.value for entry in known if entry.value.fence < leadership.fence]
        last = before[-1] if before else None
        takeover = Takeover(
            fence=leadership.fence,
            holder=self._holder,
            address=self._address,
            at=self._begun_at,
            previous_holder="" if last is None else last.holder,
            previous_address="" if last is None else last.address,
            previous=_farewell(last),
        )
        then: list[Operation] = [TAKEOVER.put(takeover, fence=takeover.fence), *_too_many(known)]
        done = await self._store.txn([leadership.guard()], then)
        return takeover if done.succeeded else None


def _farewell(last: Takeover | None) -> Farewell:
    if last is None:
        return Farewell.NONE
    return Farewell.SILENT if last.released_at is None else Farewell.RELEASED


def _too_many(known: Sequence[Entry[Takeover]]) -> list[Operation]:
    """Return deletions of the oldest records, to make room for one more."""
    return [TAKEOVER.delete(fence=entry.value.fence) for entry in known[: max(0, len(known) + 1 - KEPT)][:KEPT]]


def _fence(entry: Entry[Takeover]) -> int:
    return entry.value.fence
