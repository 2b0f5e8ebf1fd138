"""Components of a rack and their wiring: which component depends on which, and which ones an event applies to."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Literal

import msgspec

from hostler.errors import Invalid
from hostler.model.name import fold
from hostler.model.node import node_id, split_node_id
from hostler.sim.hardware.event import (
    Connect,
    Crash,
    Cut,
    Disconnect,
    Join,
    PowerOff,
    PowerOn,
    Repair,
    Replace,
    Start,
    Stick,
    Stop,
    Unstick,
    target_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hostler.engine.inventory.inventory_file import Inventory
    from hostler.model.inventory import Blade, Pdu, Rack, Tor
    from hostler.sim.hardware.event import Event


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


Kind = Literal["pdu", "tor", "cable", "blade"]


class Cable(msgspec.Struct, frozen=True, gc=False):
    """The cable in one port."""

    address: str
    source: str
    """The pdu or tor."""
    port: int
    item: str
    """The blade or tor at the other end."""
    power: bool
    """False: network."""


class Wiring:
    """The wiring of one rack. A port that names an unknown item counts as not wired."""

    def __init__(self, plan: RackPlan) -> None:
        self.plan = plan
        self.kinds: dict[str, Kind] = {}
        """All components of the rack by address: pdus, tors, blades, then cables."""
        self.cables: dict[str, Cable] = {}
        self.duty: dict[str, bool] = {}
        """For pdus, tors and blades: whether they are on duty, apart from the rack."""
        self.ports: defaultdict[str, list[Cable]] = defaultdict(list)
        """The cables in a pdu or tor."""
        self._power: defaultdict[str, list[Cable]] = defaultdict(list)
        self._network: defaultdict[str, list[Cable]] = defaultdict(list)
        parts: list[DevicePlan | BladePlan] = [*plan.pdus, *plan.tors, *plan.blades]
        for part in parts:
            address = f"{plan.name}/{part.name}"
            if address in self.duty:
                raise Invalid(f"{address}: two components of the rack have this name; rename one")
            self.duty[address] = part.on_duty
        self.kinds |= {f"{plan.name}/{pdu.name}": "pdu" for pdu in plan.pdus}
        self.kinds |= {f"{plan.name}/{tor.name}": "tor" for tor in plan.tors}
        self.kinds |= {f"{plan.name}/{blade.name}": "blade" for blade in plan.blades}
        for pdu in plan.pdus:
            self._plug(pdu, power=True)
        for tor in plan.tors:
            self._plug(tor, power=False)
        self.kinds |= dict.fromkeys(self.cables, "cable")
        self.power_known = bool(self._power)
        """False: no power cable is known, so everything has power."""
        self.network_known = bool(self._network)

    def _plug(self, device: DevicePlan, *, power: bool) -> None:
        source = f"{self.plan.name}/{device.name}"
        for number, name in sorted(device.ports.items()):
            item = f"{self.plan.name}/{name}"
            kind = self.kinds.get(item)
            if kind == "blade" or (power and kind == "tor"):
                cable = Cable(f"{source}:{number}", source, number, item, power)
                self.cables[cable.address] = cable
                self.ports[source].append(cable)
                (self._power if power else self._network)[item].append(cable)

    def power_to(self, item: str) -> list[Cable]:
        """Return the cables that can bring power to a blade or tor."""
        return self._power.get(item, [])

    def network_to(self, item: str) -> list[Cable]:
        """Return the cables that can connect a blade."""
        return self._network.get(item, [])

    def of(self, *kinds: Kind) -> Iterator[str]:
        """Return the addresses of all components of these kinds."""
        return (address for address, kind in self.kinds.items() if kind in kinds)

    def wanted(self) -> frozenset[str]:
        """Return the components that should be on and connected: all on duty, and the cables between two of them.

        A blade without a cable to a pdu or tor on duty cannot be, so it is not included.
        """
        if not self.plan.on_duty:
            return frozenset()
        cables = [each for each in self.cables.values() if self.duty[each.source] and self.duty[each.item]]
        fed = {cable.item for cable in cables if cable.power}
        connected = {cable.item for cable in cables if not cable.power}
        wanted = {cable.address for cable in cables}
        for address, on_duty in self.duty.items():
            kind = self.kinds[address]
            has_power = kind == "pdu" or address in fed or not self.power_to(address)
            if kind == "blade":
                has_power = address in fed or not self.power_known
                has_power &= address in connected or not self.network_known
            if on_duty and has_power:
                wanted.add(address)
        return frozenset(wanted)


def node_of(blade: str) -> str:
    """Return the node of the blade at an address: `r1/b3` is `r1-b3`."""
    rack, _, name = blade.partition("/")
    return node_id(rack, name)


def address_of(node: str) -> str:
    """Return the address of the blade of a node: `r1-b3` is `r1/b3`."""
    return "/".join(split_node_id(node))


def affected_components(event: Event, address: str, wiring: Wiring) -> tuple[str, ...]:
    """Return the components that an event applies to, in order. Invalid: it applies to none."""
    kind = wiring.kinds.get(address, "rack")
    found: tuple[str, ...] = ()
    match event:
        case PowerOff() | PowerOn():
            found = _power_ports(address, kind, wiring)
        case Connect() | Disconnect():
            found = _network_ports(address, kind, wiring)
        case Cut() | Join() | Stick() | Unstick():
            found = (address,) if kind in ("pdu", "tor", "cable") else ()
        case Crash() | Start() | Stop():
            found = tuple(wiring.of("blade")) if kind == "rack" else (address,) if kind == "blade" else ()
        case Repair() | Replace():
            found = (address,) if kind != "rack" else ()
    if not found:
        raise Invalid(f"{address}: {type(event).__name__} does not apply to a {kind}; {target_text(event)}")
    return found


def _power_ports(address: str, kind: str, wiring: Wiring) -> tuple[str, ...]:
    if kind == "rack":
        return tuple(wiring.of("pdu"))
    if kind == "cable":
        return (address,) if wiring.cables[address].power else ()
    return (address,) if kind == "pdu" else tuple(cable.address for cable in wiring.power_to(address))


def _network_ports(address: str, kind: str, wiring: Wiring) -> tuple[str, ...]:
    if kind == "cable":
        return () if wiring.cables[address].power else (address,)
    cables = wiring.ports[address] if kind == "tor" else wiring.network_to(address)
    return tuple(cable.address for cable in cables)
