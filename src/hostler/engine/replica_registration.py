"""Registration of a replica, so that standby replicas are visible, too.

For users only: only the record of the election key determines the leader.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from hostler.errors import HostlerError, LeaseGone
from hostler.keys.families import LEADER, REPLICA
from hostler.kit.clock import SystemClock
from hostler.kit.rate_limit import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.engine.service import Standing
    from hostler.kit.clock import Clock
    from hostler.model.replica import ReplicaRecord
    from hostler.ports.store import Lease, Store

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
