"""Loss of the store and recovery from it: a backup, and its restore by the product's own code."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from hostler.engine.transfer.copy import source_of
from hostler.errors import NotFound
from hostler.model.lab import utc_time
from hostler.ports.store import Delete, pieces
from hostler.sim.world.host import chance

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from hostler.ports.store import KeyValue
    from hostler.sim.world.world import World

CAUSE = "restore"
STORE = "sim://store"
HEARD_WITHIN = 5.0
AT_ONCE = 100
"""Most keys of one transaction."""


class WorldBackup:
    """A `hostler.engine.transfer.restore.Backup` in memory."""

    def __init__(self, items: Sequence[KeyValue], revision: int, created: str) -> None:
        self._items, self.revision, self.created = items, revision, created
        self.name = f"backup of revision {revision}"

    async def entries(self) -> AsyncGenerator[KeyValue, None]:
        for kv in self._items:
            yield kv


class Recovery:
    """Backup and restore of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._backup: WorldBackup | None = None
        self._restores = 0
        self.runs = False
        """Whether a restore is running: changes in the store are not decisions then."""

    async def take_backup(self) -> None:
        """Keep a copy of the store without the keys that are attached to leases."""
        source = await source_of(self._world.store, STORE, "", with_leased=False)
        async with aclosing(source.entries()) as entries:
            items = [kv async for kv in entries]
        self._backup = WorldBackup(items, source.revision, utc_time(self._world.clock.wall()))

    async def restore(self) -> None:
        """Lose the store; stop every replica and agent, fill an empty store from the last backup, and restart them.

        Machines keep running. NotFound: there is no backup.
        """
        world, backup = self._world, self._backup
        if backup is None:
            raise NotFound("restore: there is no backup; take one first (do: backup)")
        hosts = tuple(world.hosts.values())
        for host in hosts:
            host.held[CAUSE] = None
            host.kill(CAUSE)
        self._restores += 1
        rng = chance(world.seed, f"restore {self._restores}")
        self.runs = True
        try:
            keys = (await world.store.range("", keys_only=True)).items
            for some in pieces((Delete(kv.key) for kv in keys), most=AT_ONCE):
                await world.store.txn([], some)
            await world.parts.restore(
                *(world.store, backup, ""),
                merge=False,
                replace=False,
                name=STORE,
                report=lambda _: None,
                clock=world.clock,
                new_id=lambda: f"{rng.getrandbits(64):016x}",
            )
            await world.until(self._is_heard, within=HEARD_WITHIN, every=0.01)
        finally:
            self.runs = False
            for host in hosts:
                if host.held.pop(CAUSE, "") is None:
                    host.start(CAUSE)

    async def _is_heard(self) -> bool:
        """Return whether the watch has seen everything that was written."""
        return self._world.chronicle.revision >= (await self._world.store.status()).revision
