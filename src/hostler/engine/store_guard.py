"""Store guard: ends a control-plane process whose store was emptied, replaced by an older one, moved or exchanged."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.cluster_id import (
    ACCEPT,
    cluster_id,
    objection,
    read_identity,
    remember,
    remember_refusal,
    remembered,
)
from hostler.errors import Refused, Unavailable, Uncertain

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.engine.cluster_id import Identity, Memory
    from hostler.kit.clock import Clock
    from hostler.model.node import LastControlPlane
    from hostler.ports.store import Store

LOOK_EVERY = 1.0
WRITE_EVERY = 60.0
"""Seconds after which a higher revision alone is written to the memory."""
ANSWER_WITHIN = 5.0


class StoreGuard:
    """Checks the identity of the store. One per process: `check` before the first write, then `run`."""

    def __init__(
        self,
        store: Store,
        memory: Memory | None,
        *,
        clock: Clock,
        new_id: Callable[[], str],
        accept: bool = False,
        look_every: float = LOOK_EVERY,
    ) -> None:
        """`memory` outlives the process; without one, only what this process has read counts.

        `accept`: start with the store as it is, regardless of the memory.
        """
        self._store, self._memory, self._clock, self._new_id = store, memory, clock, new_id
        self._accept, self._every = accept, look_every
        self._last: LastControlPlane | None = None
        self._revision = 0
        self._write_at = -math.inf

    def least_fence(self) -> int:
        """Return the fence that a new leadership must exceed."""
        return 0 if self._last is None else self._last.fence

    async def check(self) -> None:
        """Check the store, and give it an identity if it has none. Refused: this process must not use it."""
        if self._memory is not None and not self._accept:
            self._last = await remembered(self._memory)
        identity = await read_identity(self._store)
        if not self._why_not(identity) and identity.cluster is None:
            await cluster_id(self._store, self._clock, self._new_id)
            identity = await read_identity(self._store)
        await self._looked(identity)

    async def run(self) -> None:
        """Check repeatedly until cancelled. Refused: the store is no longer the one that this process started with.

        If the store does not answer, it is checked again later.
        """
        while True:
            await self._clock.sleep(self._every)
            try:
                async with asyncio.timeout(ANSWER_WITHIN):
                    identity = await read_identity(self._store)
            except (Unavailable, Uncertain, TimeoutError):
                continue
            await self._looked(identity)

    async def _looked(self, identity: Identity) -> None:
        why = self._why_not(identity)
        if why:
            self._last = await remember_refusal(self._memory, identity, self._reached())
            raise Refused(
                f"store: {why}; nothing is written to it. Configure the store that is in service, or, if this one is,"
                f" start once with {ACCEPT}"
            )
        self._revision = max(self._revision, identity.revision)
        now = self._clock.now()
        is_due = now >= self._write_at
        if is_due:
            self._write_at = now + WRITE_EVERY
        self._last = await remember(self._memory, identity, self._last, with_revision=is_due)

    def _reached(self) -> LastControlPlane | None:
        """Return what is remembered, with the highest revision that this process has seen."""
        if self._last is None or self._revision <= self._last.revision:
            return self._last
        return msgspec.structs.replace(self._last, revision=self._revision)

    def _why_not(self, identity: Identity) -> str:
        if identity.revision < self._revision:
            return (
                f"it went back from revision {self._revision} to {identity.revision}: it was replaced by another store"
            )
        return objection(self._last, identity)
