"""Records of replicas, for users only: the registration of each, and the history of leaders.

Only the record of the election key determines the leader. Nothing depends on these records or waits for them: if the
store does not answer, the write is retried.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from hostler.errors import HostlerError, LeaseGone
from hostler.keys.families import LEADER, REPLICA, TAKEOVER
from hostler.kit.clock import SystemClock
from hostler.kit.rate_limit import Backoff
from hostler.model.replica import Farewell, Takeover

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostler.engine.leadership import Leadership
    from hostler.engine.service import Standing
    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.replica import ReplicaRecord
    from hostler.ports.store import Lease, Operation, Store


RENEWALS = 4
PATIENCE = 1.0
"""Seconds that removing the record may take."""


class Presence:
    """Keeps the record of one replica in the store, on a lease, from `open` to `aclose`.

    As a service of the replica (first among the services, and first among the controllers) it records which key is
    held.
    """

    name = "presence"

    def __init__(
        self, store: Store, record: ReplicaRecord, *, clock: Clock | None = None, url: Callable[[], str] = str
    ) -> None:
        """`url`: the address of the replica; read at each renewal, because a new certificate changes it."""
        self._store, self._record, self._url = store, record, url
        self._clock: Clock = clock or SystemClock()
        self._changed = asyncio.Event()
        self._lease: Lease | None = None
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Start; writes are retried while the store does not answer."""
        self._task = asyncio.create_task(self._keep(), name="presence")

    async def aclose(self) -> None:
        """Remove the record; if the store does not answer, it expires."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        if self._lease is not None:
            with suppress(HostlerError, TimeoutError):
                await asyncio.wait_for(self._lease.revoke(), PATIENCE)

    # As a service

    async def start(self, standing: Standing) -> None:
        held = standing.leadership
        number = int(LEADER.parse(held.key)["n"])
        self._write(
            msgspec.structs.replace(self._record, key=number, fence=held.fence, held_at=self._clock.wall()),
        )

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def stop(self) -> None:
        self._write(msgspec.structs.replace(self._record, key=None, fence=0, held_at=None))

    # Internal

    def _write(self, record: ReplicaRecord) -> None:
        self._record = record
        self._changed.set()

    async def _keep(self) -> None:
        backoff = Backoff(0.05, self._record.ttl / RENEWALS)
        written: ReplicaRecord | None = None
        while True:
            self._changed.clear()
            record = msgspec.structs.replace(self._record, url=self._url())
            pause = record.ttl / RENEWALS
            try:
                if self._lease is None:
                    self._lease, written = await self._store.grant(record.ttl), None
                if written == record:
                    await self._lease.keep_alive()
                else:
                    operation = REPLICA.put(record, lease=self._lease, holder=record.holder)
                    await self._store.txn([], [operation])
                    written = record
                backoff.reset()
            except LeaseGone:
                self._lease = None
                continue
            except HostlerError:  # nothing depends on it, and the write may be repeated
                pause = backoff.next()
            await self._pause(pause)

    async def _pause(self, seconds: float) -> None:
        sleeping = asyncio.create_task(self._clock.sleep(seconds), name="presence: pause")
        changed = asyncio.create_task(self._changed.wait(), name="presence: change")
        try:
            await asyncio.wait((sleeping, changed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            changed.cancel()
            await asyncio.gather(sleeping, changed, return_exceptions=True)


KEPT = 50
"""Number of leaderships that are kept."""
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
                self._written = await self._begin(self._leadership)
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

    async def _begin(self, leadership: Leadership) -> Takeover | None:
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
