"""Topology cache: the inventory in memory, and its consequences for a node.

A change of a blade affects its node; a change of a rack, or of its pdus and tors, the nodes of the rack; a change of a
zone or region the nodes below it. Nothing here iterates over all nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from hostler.keys.cache import Cache
from hostler.keys.families import BLADE, IN_RACKS, MEMBER, MORE_PDUS, MORE_TORS, PDU, RACK, REGION, TOR, ZONE
from hostler.model.inventory import Blade, Pdu, Rack, Tor
from hostler.model.name import fold

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    from hostler.keys.key import Key
    from hostler.kit.clock import Clock
    from hostler.model.inventory import Capacity, Hardware
    from hostler.model.node import NodeRecord
    from hostler.ports.store import Store

UNLISTED = "not in the inventory, though its rack is"
_SECOND = 2


class Wiring(NamedTuple):
    """Location of a node. The names are unique in the cluster: `r1`, `r1/pdu1`."""

    rack: str
    pdus: tuple[str, ...] = ()
    tors: tuple[str, ...] = ()


class _Feeds(NamedTuple):
    """The pdus and tors of the blades of one rack, by the blade's folded name."""

    pdus: dict[str, list[Pdu]]
    tors: dict[str, list[Tor]]
    any_pdu: bool
    any_tor: bool


class InventoryView:
    """A part of the `View`, which runs its caches. Nodes and racks have the same folded names as in keys."""

    def __init__(
        self, store: Store, members: Cache[NodeRecord], *, clock: Clock, rng: random.Random | None = None
    ) -> None:
        self.parts: Cache[Any] = Cache(store, IN_RACKS, clock=clock, rng=rng)
        """Pdus, tors and blades."""
        self.racks = Cache(store, RACK, clock=clock, rng=rng)
        self.regions = Cache(store, REGION, clock=clock, rng=rng)
        self.zones = Cache(store, ZONE, clock=clock, rng=rng)
        self.mirrors: dict[str, Cache[Any]] = {
            "racks": self.racks,
            "rack parts": self.parts,
            "regions": self.regions,
            "zones": self.zones,
        }
        self._members = members
        self._feeds: dict[str, _Feeds] = {}  # by rack; built on demand
        self._blades: dict[str, dict[str, None]] = {}  # by rack
        self._zone_of: dict[str, tuple[str, str]] = {}  # of a rack: its region and zone
        self._in_zone: dict[tuple[str, str], dict[str, None]] = {}
        self._nodes: dict[str, dict[str, None]] = {}  # registered nodes, by rack
        self._listeners: tuple[Callable[[str], None], ...] = ()
        members.listen(self._member_changed)
        self.parts.listen(self._part_changed)
        self.racks.listen(self._rack_changed)
        self.zones.listen(lambda key: self._zone_changed(ZONE.parse(key)))
        self.regions.listen(lambda key: self._region_changed(REGION.parse(key)["region"]))

    # Consequences for a node

    def objection(self, node: str) -> str:
        """Return why the node accepts no further machine; empty: no objection, or its rack is unknown."""
        rack, _, blade = node.partition("-")
        if not rack or not blade:
            return ""
        key = RACK.fill(rack=rack)
        entry = self.racks.entries.get(key)
        if entry is None:
            return f"rack {rack}: its record cannot be read" if key in self.racks.unreadable else ""
        return self.above(entry.value) or self._of_blade(rack, blade, entry.value)

    def wiring(self, node: str) -> Wiring | None:
        """Return the wiring of the node; None: its rack is unknown, and the report of its agent counts."""
        rack, _, blade = node.partition("-")
        if not rack or not blade or RACK.fill(rack=rack) not in self.racks.entries:
            return None
        feeds = self._feeds_of(rack)
        return Wiring(
            rack,
            tuple(f"{rack}/{fold(pdu.name)}" for pdu in feeds.pdus.get(blade, ())),
            tuple(f"{rack}/{fold(tor.name)}" for tor in feeds.tors.get(blade, ())),
        )

    def blade(self, node: str) -> Blade | None:
        """Return the blade of a node; None: it is not in the inventory."""
        rack, _, blade = node.partition("-")
        if not rack or not blade:
            return None
        entry = self.parts.entries.get(BLADE.fill(rack=rack, blade=blade))
        return entry.value if entry is not None and isinstance(entry.value, Blade) else None

    def capacity(self, node: str) -> Capacity | None:
        """Return its capacity in the inventory; 0 of a resource: not given."""
        blade = self.blade(node)
        return None if blade is None else blade.capacity

    def listen(self, changed: Callable[[str], None]) -> Callable[[], None]:
        """Call `changed(node)` for each registered node after a change of its data here.

        As with a cache: only note the name in the callback, and read later. The returned function ends it.
        """
        self._listeners = (*self._listeners, changed)

        def end() -> None:
            self._listeners = tuple(other for other in self._listeners if other is not changed)

        return end

    # Contents

    def blades_of(self, rack: str) -> tuple[str, ...]:
        """Return the folded names of its blades, in no order."""
        return tuple(self._blades.get(rack, ()))

    def unlisted(self) -> Iterator[str]:
        """Yield registered nodes that are not in the inventory although their rack is."""
        for rack in tuple(self._nodes):
            if RACK.fill(rack=rack) in self.racks.entries:
                yield from self.unlisted_in(rack)

    def unlisted_in(self, rack: str) -> Iterator[str]:
        """Yield the same for one rack that is in the inventory."""
        known = self._blades.get(rack, {})
        yield from (node for node in self._nodes.get(rack, ()) if node.partition("-")[2] not in known)

    def count_feeds(self, rack: str, first: Key[Any], more: Key[Any]) -> int:
        """Return the number of pdus, or tors, of a rack."""
        keys = (first.fill(rack=rack), more.fill(rack=rack, n=_SECOND))
        return sum(key in self.parts.entries for key in keys)

    def above(self, rack: Rack) -> str:
        """Return what excludes all nodes of a rack; empty: nothing."""
        if rack.region:
            region = self.regions.get(region=rack.region)
            if region is not None and not region.value.on_duty:
                return _off_duty(f"region {region.value.name}", region.value)
            zone = self.zones.get(region=rack.region, zone=rack.zone) if rack.zone else None
            if zone is not None and not zone.value.on_duty:
                return _off_duty(f"zone {zone.value.region}/{zone.value.name}", zone.value)
        return "" if rack.on_duty else _off_duty(f"rack {rack.name}", rack)

    # Internal

    def _of_blade(self, rack: str, blade: str, above: Rack) -> str:
        found = self.parts.entries.get(BLADE.fill(rack=rack, blade=blade))
        if found is None:
            unreadable = BLADE.fill(rack=rack, blade=blade) in self.parts.unreadable
            return f"blade {above.name}/{blade}: its record cannot be read" if unreadable else UNLISTED
        name = f"{above.name}/{found.value.name}"
        if not found.value.on_duty:
            return _off_duty(f"blade {name}", found.value)
        feeds = self._feeds_of(rack)
        if feeds.any_pdu and (why := _unfed("pdu", name, feeds.pdus.get(blade, []))):
            return why
        return _unfed("tor", name, feeds.tors.get(blade, [])) if feeds.any_tor else ""

    def _feeds_of(self, rack: str) -> _Feeds:
        feeds = self._feeds.get(rack)
        if feeds is None:
            found = (
                *(PDU.fill(rack=rack), MORE_PDUS.fill(rack=rack, n=_SECOND)),
                *(TOR.fill(rack=rack), MORE_TORS.fill(rack=rack, n=_SECOND)),
            )
            records = [entry.value for key in found if (entry := self.parts.entries.get(key)) is not None]
            pdus = [record for record in records if isinstance(record, Pdu)]
            tors = [record for record in records if isinstance(record, Tor)]
            feeds = self._feeds[rack] = _Feeds(_by_item(pdus), _by_item(tors), bool(pdus), bool(tors))
        return feeds

    # Changes

    def _member_changed(self, key: str) -> None:
        node = MEMBER.parse(key)["node"]
        rack, _, blade = node.partition("-")
        if not blade:
            return
        if key in self._members.entries:
            self._nodes.setdefault(rack, {})[node] = None
        elif rack in self._nodes:
            self._nodes[rack].pop(node, None)
            if not self._nodes[rack]:
                del self._nodes[rack]

    def _part_changed(self, key: str) -> None:
        parts = IN_RACKS.match(key) or {}
        rack, blade = parts["rack"], parts.get("blade")
        if blade is None:
            self._feeds.pop(rack, None)
            self._tell_rack(rack)
            return
        if key in self.parts.entries:
            self._blades.setdefault(rack, {})[blade] = None
        elif rack in self._blades:
            self._blades[rack].pop(blade, None)
            if not self._blades[rack]:
                del self._blades[rack]
        node = f"{rack}-{blade}"
        if node in self._nodes.get(rack, ()):
            self._tell(node)

    def _rack_changed(self, key: str) -> None:
        rack = RACK.parse(key)["rack"]
        before = self._zone_of.pop(rack, None)
        if before is not None:
            self._in_zone[before].pop(rack, None)
            if not self._in_zone[before]:
                del self._in_zone[before]
        entry = self.racks.entries.get(key)
        if entry is not None and entry.value.region:
            zone = self._zone_of[rack] = (fold(entry.value.region), fold(entry.value.zone))
            self._in_zone.setdefault(zone, {})[rack] = None
        self._tell_rack(rack)

    def _zone_changed(self, parts: dict[str, str]) -> None:
        for rack in tuple(self._in_zone.get((parts["region"], parts["zone"]), ())):
            self._tell_rack(rack)

    def _region_changed(self, region: str) -> None:
        for zone, racks in tuple(self._in_zone.items()):
            if zone[0] == region:
                for rack in tuple(racks):
                    self._tell_rack(rack)

    def _tell_rack(self, rack: str) -> None:
        for node in tuple(self._nodes.get(rack, ())):
            self._tell(node)

    def _tell(self, node: str) -> None:
        for changed in self._listeners:
            changed(node)


def _off_duty(what: str, record: Hardware) -> str:
    return f"{what}: {'not enabled' if not record.enabled else record.condition.value}"


def _unfed(kind: str, blade: str, feeds: list[Pdu] | list[Tor]) -> str:
    """Return why the blade is not supplied by any of these; empty: it is."""
    if not feeds:
        return f"blade {blade}: wired to no {kind}"
    if any(feed.on_duty for feed in feeds):
        return ""
    return f"no {kind} of blade {blade} is on duty ({', '.join(_off_duty(feed.name, feed) for feed in feeds)})"


def _by_item(feeds: list[Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for feed in feeds:
        for port in feed.ports.values():
            if port.wired and port.item:
                fed = found.setdefault(fold(port.item), [])
                if not fed or fed[-1] is not feed:
                    fed.append(feed)
    return found
