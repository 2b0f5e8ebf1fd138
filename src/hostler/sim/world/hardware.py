"""Effects of rack changes on processes: no power stops processes and machines, no network cuts them off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.kit.virtual_loop import outside
from hostler.model.name import fold
from hostler.sim.hardware import BladePlan as Loose
from hostler.sim.hardware import BladeState, RackPlan, Racks, rack_plan
from hostler.sim.hardware.wiring import node_of
from hostler.sim.world.host import chance

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Sequence

    from hostler.engine.inventory.inventory_file import Inventory
    from hostler.sim.hardware import Change, Event
    from hostler.sim.world.config import BladeConfig
    from hostler.sim.world.world import World


def rack_plans(inventory: Inventory, blades: Iterable[BladeConfig] = ()) -> list[RackPlan]:
    """Return the plans of the racks of an inventory, and of more blades whose cables are unknown."""
    regions = {fold(region.name): region.on_duty for region in inventory.regions}
    zones = {(fold(zone.region), fold(zone.name)): zone.on_duty for zone in inventory.zones}
    plans = []
    for full in inventory.racks:
        region, zone = fold(full.rack.region), fold(full.rack.zone)
        above = regions.get(region, True) and zones.get((region, zone), True)
        plans.append(rack_plan(full.rack, full.pdus, full.tors, full.blades, above=above))
    loose: dict[str, list[Loose]] = {}
    for blade in blades:
        rack, _, name = blade.component.partition("/")
        loose.setdefault(rack, []).append(Loose(name=name))
    return [*plans, *(RackPlan(name=rack, blades=tuple(found)) for rack, found in loose.items())]


class Hardware:
    """The racks of a world, and the timer for their next change."""

    def __init__(self, world: World) -> None:
        self._world = world
        plans = rack_plans(world.plan.inventory, world.plan.blades)
        self.racks = Racks(plans, chance(world.seed, "hardware"), now=world.loop.time())
        self._timer: asyncio.TimerHandle | None = None
        self._wound_for: float | None = None

    def apply(self, event: Event, *, cause: str = "") -> Sequence[Change]:
        """Apply an event now, with all consequences. NotFound, Invalid: it cannot be applied."""
        changes = self.racks.apply(event, now=self._world.loop.time(), cause=cause)
        self._follow(changes)
        return changes

    def revise(self, inventory: Inventory) -> None:
        """Replace the racks and blades."""
        plans = rack_plans(inventory, self._world.plan.blades)
        self._follow(self.racks.revise(plans, now=self._world.loop.time()))

    def wind(self) -> None:
        """Set the timer for the next change."""
        due = self.racks.next_at()
        if due == self._wound_for:
            return
        self.stop()
        if due is not None:
            self._timer, self._wound_for = self._world.loop.call_at(due, self._due, context=outside()), due

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._wound_for = None

    def _due(self) -> None:
        self._timer = self._wound_for = None
        self._follow(self.racks.advance(self._world.loop.time()))

    def _follow(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self._world.log.add("hardware", change.component, change.text.partition(": ")[2], change.cause)
            if isinstance(change.after, BladeState) or isinstance(change.before, BladeState):
                self._blade(change)
        self.wind()

    def _blade(self, change: Change) -> None:
        node, after = node_of(change.component), change.after
        host = self._world.blades.get(node)
        if host is None:
            return
        if not isinstance(after, BladeState):
            host.carry(runs=False, connected=False, serial=host.serial, cause=change.component)
        else:
            host.carry(runs=after.runs, connected=after.reaches_network, serial=after.serial, cause=change.component)
