"""Hardware of a world, and its effects: no power stops processes and machines, no network cuts them off.

It has the power switches of the control plane, over simulated pdus, and the disks of simulated machines, which report
each deleted disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.drivers.machines.simulated import MemoryHost
from hostler.errors import NotFound, Uncertain
from hostler.kit.virtual_loop import outside
from hostler.model.name import fold
from hostler.sim.hardware import BladePlan as Loose
from hostler.sim.hardware import BladeState, PowerOff, RackPlan, Racks, rack_plan
from hostler.sim.hardware.wiring import address_of, node_of
from hostler.sim.world.host import chance

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Sequence

    from hostler.drivers.machines.simulated.host import Kept, Row
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


class RackPower:
    """`ports.power.Power` over simulated racks. A blade without power is certainly off."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware

    async def switch_off(self, node: str) -> bool:
        """Switch off every port that feeds the node's blade.

        False: no pdu feeds it. Uncertain: a port ignored the command.
        """
        blade, racks = address_of(node), self._hardware.racks
        try:
            if racks.blade(blade).powered:
                if not racks.wiring(blade).power_to(blade):
                    return False
                self._hardware.apply(PowerOff(blade), cause="fencing")
            still_on = racks.blade(blade).powered
        except NotFound:
            return False
        if still_on:
            raise Uncertain(f"node {node}: a pdu ignored the command; the node may still be on")
        return True


class Disks:
    """Notifies listeners of each deleted disk of a world."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[str, Row, Kept | None], None]] = []

    def listen(self, deleted: Callable[[str, Row, Kept | None], None]) -> None:
        """Call `deleted` for each deleted disk.

        Its arguments are the node, the machine's row before the deletion, and how it was retained; None: it was in
        service.
        """
        self._listeners.append(deleted)

    def deleted(self, node: str, row: Row, kept: Kept | None = None) -> None:
        """Notify the listeners that the disk of this row was deleted."""
        for listener in self._listeners:
            listener(node, row, kept)


class DiskHost(MemoryHost):
    """The machines of one blade."""

    def __init__(self, id: str, node: str, disks: Disks) -> None:  # noqa: A002 - the signature of MemoryPlace
        super().__init__(id)
        self._node, self._disks = node, disks

    def put(self, rows: Sequence[Row]) -> None:
        before = [self.contents.rows.get(row.vm) for row in rows]
        super().put(rows)
        for old, row in zip(before, rows):
            if old is not None and old.disk_id and old.disk_id != row.disk_id:
                self._disks.deleted(self._node, old)

    def delete(self, vm: str, now: float) -> None:
        row = self.contents.rows.get(vm)
        super().delete(vm, now)
        if row is not None and row.disk_id:
            self._disks.deleted(self._node, row)

    def reinstate(self, name: str, row: Row) -> None:
        old = self.contents.rows.get(row.vm)
        super().reinstate(name, row)
        if old is not None and old.disk_id and old.disk_id != row.disk_id:
            self._disks.deleted(self._node, old)

    def discard(self, name: str) -> None:
        kept = self.contents.kept.get(name)
        super().discard(name)
        if kept is not None:
            self._disks.deleted(self._node, kept.row, kept)
