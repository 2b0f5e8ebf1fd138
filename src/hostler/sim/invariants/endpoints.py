"""Whether labs that are shown as available are reachable, checked periodically."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.sim.fault import (
    AnswerLost,
    ClockRate,
    LeaderKilled,
    LeaderPaused,
    Partition,
    ReplicaKilled,
    StoreSlow,
    StoreUnavailable,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from hostler.sim.world import World

EVERY = 2.0
_HINDERS = (AnswerLost, ClockRate, LeaderKilled, LeaderPaused, Partition, ReplicaKilled, StoreSlow, StoreUnavailable)


class Endpoints:
    """Tracks unreachable labs. Time counts only while there is a leader and nothing hinders it."""

    def __init__(self, world: World, violated: Callable[[str, str, float | None], None]) -> None:
        self._world, self._violated = world, violated
        plan = world.plan
        self.grace = 2 * plan.node_ttl + plan.leadership_ttl + 10.0
        self._since: dict[str, float] = {}
        self._told: set[str] = set()
        self._task: asyncio.Task[None] | None = world.spawn(self._run(), "invariants: endpoints")

    def stop(self) -> None:
        """Stop checking."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        while True:
            await self._world.clock.sleep(EVERY)
            self._look()

    def _look(self) -> None:
        world, now = self._world, self._world.clock.now()
        shown = [user for user, record in world.door.records.items() if record.available]
        hindered = is_hindered(world)
        there = self._reachable() if shown else set()
        unreachable = {user for user in shown if user not in there}
        for user in [user for user in self._since if user not in unreachable]:
            del self._since[user]
            self._told.discard(user)
        for user in sorted(unreachable):
            since = self._since.setdefault(user, now)
            if hindered:
                self._since[user] = now
            elif now - since > self.grace and user not in self._told:
                self._told.add(user)
                text = f"it is shown as available, but was unreachable for {now - since:g} s"
                self._violated(f"lab of {user}", text, since)

    def _reachable(self) -> set[str]:
        """Return the users whose machine runs on a connected blade."""
        found: set[str] = set()
        for host in self._world.blades.values():
            if host.runs and host.connected:
                for vm, row in host.place.contents.rows.items():
                    if row.on is not None and host.intervals(vm)[-1][1] is None:
                        found.add(row.label.project)
        return found


def is_hindered(world: World) -> bool:
    """Return whether there is no leader, or a fault keeps the leader from acting."""
    return world.leader() is None or any(isinstance(fault, _HINDERS) for fault in world.faults.values())
