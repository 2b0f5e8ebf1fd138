"""Whether labs that are shown as available are reachable, and whether machines and labs end early only on request.

Reachability is checked periodically. "Early" is before the expiry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hostler.errors import Damaged
from hostler.keys.families import VM
from hostler.keys.lab import LAB
from hostler.model.lab import ORG, POOL_ORG, LabEvent, LabPhase
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

    from hostler.model.lab import Lab, LabUser
    from hostler.model.vm import VirtualMachine
    from hostler.ports.store import Event, KeyValue
    from hostler.sim.invariants.outcomes import Asked
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
        shown = [user for user, record in world.lab_redis.records.items() if record.available]
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


DRIFT = 2.0
"""Seconds by which an end may be early."""


class Ends:
    """Compares ends with the requests of users."""

    def __init__(self, world: World, asked: Asked, violated: Callable[[str, str, float | None], None]) -> None:
        self._world, self._asked, self._violated = world, asked, violated
        self._labs: dict[str, Lab] = {}
        """For each machine, the lab that names it."""
        self._drifts = False
        """Whether a clock has run at another rate: an expiry then depends on the observer."""
        self._ending: dict[str, str] = {}
        """Lab machines whose deletion began in the present revision, by id: the lab's record may follow."""
        self._revision = 0
        self.looks = 0

    def heard(self, event: Event) -> None:
        """Handle any event of the store."""
        key = event.kv.key
        if event.kv.mod_revision != self._revision:
            self._revision = event.kv.mod_revision
            self.judge()
        is_vm = key.startswith(VM.prefix())
        if not is_vm and not key.startswith(LAB.prefix()):
            return
        self._drifts = self._drifts or any(isinstance(fault, ClockRate) for fault in self._world.faults.values())
        now = None if event.type == "delete" else _value(VM if is_vm else LAB, event.kv)
        before = None if event.previous is None else _value(VM if is_vm else LAB, event.previous)
        if not is_vm:
            self._lab(before, now)
        elif now is not None and now.deleting and (before is None or not before.deleting):
            self._ends(now)

    def judge(self) -> None:
        """Check what can only be checked after all events of a revision."""
        for id_, component in self._ending.items():
            lab = self._labs.get(id_)
            if lab is not None and lab.phase is not LabPhase.STOPPING:
                self._violated(component, f"it is deleted while its lab is {lab.phase}", None)
        self._ending.clear()

    def _ends(self, vm: VirtualMachine) -> None:
        if vm.instance or vm.org == POOL_ORG:
            return
        self.looks += 1
        if self._is_over(vm.expires_at):
            return
        component = f"vm {vm.org}/{vm.project}/{vm.name}"
        if vm.org == ORG:
            self._ending[vm.id] = component
        elif (vm.org, vm.project, vm.name) not in self._asked.deleted:
            left = "" if vm.expires_at is None else f"{vm.expires_at - self._wall():g} s before its expiry"
            end = left or "and has no expiry"
            self._violated(component, f"it is deleted without a request, {end}", None)

    def _lab(self, before: LabUser | None, now: LabUser | None) -> None:
        old, new = None if before is None else before.lab, None if now is None else now.lab
        if old is not None:
            self._labs.pop(old.vm, None)
        if new is not None and new.vm:
            self._labs[new.vm] = new
        if now is None or old is None or old.phase is LabPhase.STOPPING:
            return
        if new is None or new.phase is not LabPhase.STOPPING:
            return
        self.looks += 1
        end = None if old.expires_at is None else old.expires_at + old.grace
        if new.ending is LabEvent.EXPIRED and not self._is_over(end):
            self._violated(f"lab of {now.user}", "it is ended as expired before its expiry", None)
        elif new.ending is LabEvent.STOPPED and now.user not in self._asked.stopped:
            self._violated(f"lab of {now.user}", "it is stopped without a request", None)

    def _is_over(self, end: float | None) -> bool:
        return end is not None and (self._drifts or self._wall() >= end - DRIFT)

    def _wall(self) -> float:
        return self._world.clock.wall()


def _value(key: Any, kv: KeyValue) -> Any:
    """Return the record; None: unreadable."""
    try:
        return key.entry(kv).value
    except Damaged:
        return None
