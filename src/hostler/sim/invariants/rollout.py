"""Whether updates of a workload stay within its rollout limits, checked with every change while nothing is broken."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from hostler.keys.families import BLADE, HANDLE, INSTANCE, MEMBER, RACK, REGION, WORKLOAD, ZONE
from hostler.model.node import Lifecycle
from hostler.model.vm import MachineState
from hostler.sim.invariants.converged import value_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.model.workload import Workload, WorkloadInstance
    from hostler.ports.store import Event
    from hostler.sim.world import World

_HARDWARE = (BLADE.prefix(), RACK.prefix(), ZONE.prefix(), REGION.prefix())
_CONCERN = (*_HARDWARE, HANDLE.prefix(), INSTANCE.prefix(), WORKLOAD.prefix(), MEMBER.prefix())


class _Update:
    """The update of one workload, from the change of its template on."""

    def __init__(self, least: int, most: int) -> None:
        self.least = least
        """Instances that served when the update began and are still requested."""
        self.most = most
        """Machines that existed when the update began, or when the number of instances was reduced."""
        self.unavailable = self.surge = 0


class Rollouts:
    """Tracks updates. An update during which anything breaks or is taken out of service is no longer checked."""

    def __init__(self, world: World, violated: Callable[[str, str, float | None], None]) -> None:
        self._world, self._violated = world, violated
        self._workloads: dict[str, Workload] = {}
        self._instances: defaultdict[str, dict[str, WorkloadInstance]] = defaultdict(dict)
        self._running: dict[str, None] = {}
        self._away: dict[str, None] = {}
        """Nodes that are not on duty."""
        self._updates: dict[str, _Update] = {}
        self._revision = 0
        self.looks = 0

    def heard(self, event: Event) -> None:
        """Handle any event of the store."""
        if event.kv.mod_revision != self._revision:
            self._revision = event.kv.mod_revision
            self.judge()
        key = event.kv.key
        if not key.startswith(_CONCERN):
            return
        if key.startswith(_HARDWARE):
            self._updates.clear()
        elif (parts := HANDLE.match(key)) is not None:
            self._running.pop(parts["vm"], None)
            if (handle := value_of(HANDLE, event)) is not None and handle.state is MachineState.RUNNING:
                self._running[parts["vm"]] = None
        elif (parts := INSTANCE.match(key)) is not None:
            self._instances[parts["workload"]].pop(parts["instance"], None)
            if (instance := value_of(INSTANCE, event)) is not None:
                self._instances[parts["workload"]][parts["instance"]] = instance
        elif (parts := WORKLOAD.match(key)) is not None:
            self._take_workload(parts["workload"], value_of(WORKLOAD, event))
        elif (parts := MEMBER.match(key)) is not None:
            self._away.pop(parts["node"], None)
            if (member := value_of(MEMBER, event)) is not None and member.lifecycle is not Lifecycle.ON_DUTY:
                self._away[parts["node"]] = None

    def judge(self) -> None:
        """Compare the state with the limits after all events of a revision."""
        if not self._updates:
            return
        if self._world.faults or self._away:
            self._updates.clear()
        for name, update in tuple(self._updates.items()):
            self.looks += 1
            requested, serving, machines = self._workloads[name].instances, self._serving(name), self._machines(name)
            if serving < update.least - update.unavailable:
                text = f"{serving} of {requested} serve; {update.least} did before, {update.unavailable} may be missing"
            elif machines > max(update.most, requested + update.surge):
                text = (
                    f"it has {machines} machines during the update; at most {requested} plus {update.surge} are allowed"
                )
            else:
                if self._is_over(name):
                    del self._updates[name]
                continue
            self._violated(f"workload {name}", text, None)
            del self._updates[name]

    def _take_workload(self, name: str, workload: Workload | None) -> None:
        before = self._workloads.pop(name, None)
        update = self._updates.pop(name, None)
        if workload is None:
            return
        self._workloads[name] = workload
        if before is None or workload.deleting or not workload.enabled or not before.enabled:
            return
        if update is None and workload.template != before.template and not self._world.faults and not self._away:
            update = _Update(self._serving(name), 0)
        if update is not None:
            update.least = min(update.least, workload.instances, before.instances)
            update.most = max(update.most, self._machines(name))
            update.unavailable = max(update.unavailable, *(one.rollout.max_unavailable for one in (before, workload)))
            update.surge = max(update.surge, *(one.rollout.max_surge for one in (before, workload)))
            self._updates[name] = update

    def _serving(self, name: str) -> int:
        return sum(not one.leaving and one.vm in self._running for one in self._instances[name].values())

    def _machines(self, name: str) -> int:
        return sum(bool(one.vm) for one in self._instances[name].values())

    def _is_over(self, name: str) -> bool:
        newest = self._workloads[name].template
        return all(
            one.template == newest and not one.leaving and one.vm in self._running
            for one in self._instances[name].values()
        )
