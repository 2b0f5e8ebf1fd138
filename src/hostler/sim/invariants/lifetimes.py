"""Whether machines and labs end before their expiry only on request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hostler.errors import Damaged
from hostler.keys.families import VM
from hostler.keys.lab import LAB
from hostler.model.lab import ORG, POOL_ORG, LabEvent, LabPhase
from hostler.sim.fault import ClockRate

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.model.lab import Lab, LabUser
    from hostler.model.vm import VirtualMachine
    from hostler.ports.store import Event, KeyValue
    from hostler.sim.invariants.outcomes import Asked
    from hostler.sim.world import World

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
