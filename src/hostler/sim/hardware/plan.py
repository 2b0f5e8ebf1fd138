"""Components of a rack and their wiring, as far as simulated hardware needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.model.name import fold

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostler.engine.inventory.inventory_file import Inventory
    from hostler.model.inventory import Blade, Pdu, Rack, Tor


class DevicePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A pdu or tor."""

    name: str
    ports: dict[int, str] = {}
    """The name of the item at the other end of the cable, for each wired port."""
    on_duty: bool = True


class BladePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A blade. The name is folded."""

    name: str
    on_duty: bool = True


class RackPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A rack. All names are folded."""

    name: str
    pdus: tuple[DevicePlan, ...] = ()
    tors: tuple[DevicePlan, ...] = ()
    blades: tuple[BladePlan, ...] = ()
    on_duty: bool = True
    """Whether the rack, its zone and its region are on duty."""


def plans_of(inventory: Inventory) -> tuple[RackPlan, ...]:
    """Return the plans of all racks of an inventory."""
    regions = {fold(region.name): region.on_duty for region in inventory.regions}
    zones = {(fold(zone.region), fold(zone.name)): zone.on_duty for zone in inventory.zones}
    plans = []
    for full in inventory.racks:
        region, zone = fold(full.rack.region), fold(full.rack.zone)
        above = regions.get(region, True) and zones.get((region, zone), True)
        plans.append(rack_plan(full.rack, full.pdus, full.tors, full.blades, above=above))
    return tuple(plans)


def rack_plan(
    rack: Rack, pdus: Iterable[Pdu], tors: Iterable[Tor], blades: Iterable[Blade], *, above: bool = True
) -> RackPlan:
    """Return the plan of a rack from its inventory records. `above`: whether its zone and region are on duty."""
    return RackPlan(
        name=fold(rack.name),
        pdus=tuple(_device(pdu) for pdu in pdus),
        tors=tuple(_device(tor) for tor in tors),
        blades=tuple(BladePlan(name=fold(blade.name), on_duty=blade.on_duty) for blade in blades),
        on_duty=above and rack.on_duty,
    )


def _device(device: Pdu | Tor) -> DevicePlan:
    ports = {number: fold(port.item) for number, port in sorted(device.ports.items()) if port.wired and port.item}
    return DevicePlan(name=fold(device.name), ports=ports, on_duty=device.on_duty)
