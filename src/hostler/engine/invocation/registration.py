"""Registers this process as a router, so that workers accept its calls: a record with a lease, kept while it runs."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from hostler.errors import Closed, HostlerError, LeaseGone
from hostler.keys.families import ROUTER
from hostler.kit.rate_limit import Backoff

if TYPE_CHECKING:
    import random

    from hostler.kit.clock import Clock
    from hostler.model.rollout import RouterRecord
    from hostler.ports.store import Lease, Store

TTL = 15.0
BEATS = 3
"""Heartbeats per TTL of the lease."""
PARTING = 1.0
"""Seconds that revoking the lease may take; after that it is left to expire."""


class Registration:
    """`run` keeps the record alive until it is cancelled, then removes it."""

    def __init__(
        self, store: Store, record: RouterRecord, *, clock: Clock, rng: random.Random, ttl: float = TTL
    ) -> None:
        self._store, self._record, self._clock, self._ttl = store, record, clock, ttl
        self._backoff = Backoff(0.1, ttl / BEATS, rng=rng)
        self._lease: Lease | None = None
        self.registered = asyncio.Event()
        """Set once the record is in the store."""

    async def run(self) -> None:
        """Register, and register again whenever the lease has expired."""
        try:
            while True:
                with suppress(LeaseGone):
                    await self._register()
                    await self._beat()
        finally:
            self.registered.clear()
            if self._lease is not None:
                with suppress(HostlerError, TimeoutError):
                    async with asyncio.timeout(PARTING):
                        await self._lease.revoke()

    async def _register(self) -> None:
        while True:
            try:
                self._lease = await self._store.grant(self._ttl)
                await self._store.txn([], [ROUTER.put(self._record, lease=self._lease, router=self._record.router)])
            except Closed:
                raise
            except HostlerError:
                await self._clock.sleep(self._backoff.next())
            else:
                self._backoff.reset()
                self.registered.set()
                return

    async def _beat(self) -> None:
        """Renew the lease until it has expired: LeaseGone. While the store is unreachable its state is unknown."""
        pause = self._ttl / BEATS
        while self._lease is not None:
            await self._clock.sleep(pause)
            try:
                await self._lease.keep_alive()
            except (LeaseGone, Closed):
                raise
            except HostlerError:
                pause = self._backoff.next()
            else:
                self._backoff.reset()
                pause = self._ttl / BEATS
