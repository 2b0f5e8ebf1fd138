"""Index over the plan of a rack: which component depends on which."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Literal

import msgspec

from hostler.errors import Invalid
from hostler.model.node import node_id, split_node_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostler.sim.hardware.plan import BladePlan, DevicePlan, RackPlan

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
