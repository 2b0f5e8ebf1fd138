"""Ends a process of the control plane whose store was emptied, replaced by an older one, copied away or exchanged."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hostler.engine.cluster_id import (
    ACCEPT,
    cluster_id,
    objection,
    read_identity,
    remember,
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
ANSWER_WITHIN = 5.0


class StoreGuard:
    """One per process. `check` before anything is written, then `run` while the process works."""

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
        """`memory` outlives the process; without one only this process's own past counts. `accept`: begin with the
        store as it is, whatever the memory holds."""
        self._store, self._memory, self._clock, self._new_id = store, memory, clock, new_id
        self._accept, self._every = accept, look_every
        self._last: LastControlPlane | None = None
        self._revision = 0

    def least_fence(self) -> int:
        """A new leadership has a fence above this one."""
        return 0 if self._last is None else self._last.fence

    async def check(self) -> None:
        """Give the store an identity if it has none. Refused: this process must not work on it."""
        if self._memory is not None and not self._accept:
            self._last = await remembered(self._memory)
        identity = await read_identity(self._store)
        if not self._why_not(identity) and identity.cluster is None:
            await cluster_id(self._store, self._clock, self._new_id)
            identity = await read_identity(self._store)
        await self._looked(identity)

    async def run(self) -> None:
        """Look again and again until cancelled. Refused: the store is no longer the one that this process began with.

        A store that does not answer is looked at again later.
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
            raise Refused(
                f"store: {why}; nothing is written to it. Name the store that is in service, or, if this one is, start"
                f" once with {ACCEPT}"
            )
        self._revision = max(self._revision, identity.revision)
        self._last = await remember(self._memory, identity, self._last)

    def _why_not(self, identity: Identity) -> str:
        if identity.revision < self._revision:
            return (
                f"it went back from revision {self._revision} to {identity.revision}: another store stands in its place"
            )
        return objection(self._last, identity)
