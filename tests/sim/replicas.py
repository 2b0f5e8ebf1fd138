"""Processes that each run one replica; who lost its key shuts down or is killed, and another takes its place."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hostler.engine.replica import Replica, ReplicaConfig
from hostler.engine.self_fencing import GRACE, overdue_at
from hostler.keys.families import LEADER

from .world import TTL, Process, Wrong

if TYPE_CHECKING:
    from hostler.engine.elections import Leadership
    from hostler.engine.service import Standing


class Counting:
    """A service that counts under the fence of whatever key its replica holds."""

    def __init__(self, host: Host, name: str, *, key: int | None = None) -> None:
        self.host, self.name, self._key = host, name, key
        self._standing: Standing | None = None
        self.running = False

    async def start(self, standing: Standing) -> None:
        if self.running:
            raise Wrong(f"{self.name}: started twice")
        self._standing = standing
        await asyncio.sleep(self.host.rng.choice((0.0, 0.1, TTL / 2)) * self.host.rng.random())
        self.running = True

    async def run(self) -> None:
        current = asyncio.current_task()
        assert self._standing is not None
        assert current is not None
        while True:
            leadership = self._standing.leadership
            if self._key is not None and leadership.key != LEADER.fill(n=self._key):
                raise Wrong(f"{self.name} runs while {leadership.key} is held")
            await self.host.write(leadership)
            if current.cancelling():  # the storage was deaf to it
                raise asyncio.CancelledError
            await asyncio.sleep(self.host.rng.uniform(0.05, 1.5))
            if self.host.rng.random() < 0.002:
                raise RuntimeError("the service failed")

    async def stop(self) -> None:
        await asyncio.sleep(self.host.rng.choice((0.0, 0.1)) * self.host.rng.random())
        self.running = False


class HostKiller:
    """Ends its simulated process, and tells the world of each key that is held."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.tasks: list[asyncio.Task[None]] = []

    def guard(self, leadership: Leadership) -> None:
        self._host.world.began(self._host, leadership)
        self.tasks.append(asyncio.create_task(self._watch(leadership), name="killer"))

    async def _watch(self, leadership: Leadership) -> None:
        while not leadership.released:
            left = overdue_at(leadership) - self._host.world.clock.now()
            if left <= 0:
                self._host.world.kill(self._host)
            await asyncio.sleep(min(left, leadership.ttl / GRACE / 4))


class Host(Process):
    """Launches, waits for a problem or for the wish to leave, shuts down, exits."""

    async def main(self) -> None:
        world = self.world
        self.services = [Counting(self, "first"), Counting(self, "second")]
        self.controllers = [Counting(self, "controller", key=1)]
        killer = HostKiller(self)
        replica = Replica(
            ReplicaConfig(ip=self.name, num_vvm=world.keys),
            self.storage,
            self.services,
            controllers=self.controllers,
            clock=world.clock,
            killer=killer,
            holder=self.name,
            rng=self.rng,
        )
        within = self.rng.choice((None, None, 2 * TTL))
        launching = asyncio.create_task(replica.launch(TTL, within))
        leaving = asyncio.create_task(self.leaving.wait())
        await asyncio.wait((launching, leaving), return_when=asyncio.FIRST_COMPLETED)
        if launching.done():
            trouble = asyncio.create_task(launching.result().wait())
            await asyncio.wait((trouble, leaving), return_when=asyncio.FIRST_COMPLETED)
            trouble.cancel()
        leaving.cancel()
        error = await replica.shutdown()
        await launching
        self.exited(error)
        for task in killer.tasks:
            task.cancel()

    def exited(self, error: Exception | None) -> None:
        if any(service.running for service in (*self.services, *self.controllers)):
            raise Wrong(f"{self.name}: a service still runs after shutdown")
        if isinstance(error, Wrong) or isinstance(error and error.__cause__, Wrong):
            raise error
        if error is not None:
            self.world.tally.lost += 1
        if error is not None or not self.leaving.is_set():
            self.world.after(self.rng.uniform(0.1, 1.0), self.world.spawn)
