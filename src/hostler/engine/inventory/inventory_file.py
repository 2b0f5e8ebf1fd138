"""The inventory file, and the value that it is parsed into. The format: docs/inventory.md.

`Inventory` contains the records as they are in the store, and nothing else:

    inventory.regions, inventory.zones       Region, Zone
    inventory.racks                          FullRack: .rack, .pdus, .tors, .blades (Rack, Pdu, Tor, Blade of the model)
    inventory.nodes()                        (node id, FullRack, Blade) of every blade; node ids are folded
    inventory.records()                      every record by its key, from above to below

A cable is a wired port: `full.pdus[0].ports[3].item` names, as typed, the blade (or tor) at its other end, and
`full.feeds("b3")` returns the pdus of a blade with their ports, `full.links("b3")` the tors. Names are matched folded
(`model.name.fold`). A capacity of 0 means not given: the value of the blade's agent counts; a simulator has to choose.

`read_inventory(text, file)` parses a file, `inventory_of(piece)` a part of one (of a scenario),
`inventory_in(document)` a JSON document. `export.document_of` writes it back: parsing that yields the same records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from hostler.engine.hardware_document import accelerators_and_volumes
from hostler.engine.inventory import check
from hostler.engine.inventory.cloudchamber import Translation
from hostler.errors import Invalid
from hostler.keys.families import BLADE, MORE_PDUS, MORE_TORS, PDU, RACK, REGION, TOR, ZONE
from hostler.kit.yaml import Doubts, Location, Malformed, Piece, read, wrap
from hostler.model.inventory import Blade, Capacity, Condition, Pdu, Port, Rack, Region, Tor, Zone
from hostler.model.inventory_api import CLOUDCHAMBER, HOSTLER
from hostler.model.name import fold
from hostler.model.node import node_id
from hostler.model.vm import hardware_labels
from hostler.settings.value import mebibytes_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hostler.model.inventory import Hardware

F = TypeVar("F", Pdu, Tor)

_OWN = ("name", "enabled", "condition")
_CAPACITY = ("cpus", "memory", "disk", "network_mbps")
_HAS = ("arch", "accelerators", "volumes")
"""Short forms of labels."""
_OPERATIONAL = Condition.OPERATIONAL
_CONDITIONS = (_OPERATIONAL, *(condition for condition in Condition if condition is not _OPERATIONAL))
_UNWIRED = Port()
PREFIX = "b"
"""Default prefix of the names of counted blades."""


class FullRack(Struct, frozen=True, kw_only=True):
    """A rack and its contents."""

    rack: Rack
    pdus: tuple[Pdu, ...] = ()
    tors: tuple[Tor, ...] = ()
    blades: tuple[Blade, ...] = ()

    def feeds(self, item: str) -> tuple[tuple[Pdu, int], ...]:
        """Return the pdus that an item is wired to, with the port."""
        return _wired(self.pdus, item)

    def links(self, item: str) -> tuple[tuple[Tor, int], ...]:
        """Return the tors that an item is wired to, with the port."""
        return _wired(self.tors, item)

    def records(self) -> Iterator[tuple[str, Hardware]]:
        """Yield every record by its key: the rack, its pdus and tors, its blades."""
        rack = self.rack.name
        yield RACK.fill(rack=rack), self.rack
        for n, pdu in enumerate(self.pdus, 1):
            yield (PDU.fill(rack=rack) if n == 1 else MORE_PDUS.fill(rack=rack, n=n)), pdu
        for n, tor in enumerate(self.tors, 1):
            yield (TOR.fill(rack=rack) if n == 1 else MORE_TORS.fill(rack=rack, n=n)), tor
        for blade in self.blades:
            yield BLADE.fill(rack=rack, blade=blade.name), blade


class Inventory(Struct, frozen=True, kw_only=True):
    """The whole inventory of a datacenter."""

    regions: tuple[Region, ...] = ()
    zones: tuple[Zone, ...] = ()
    racks: tuple[FullRack, ...] = ()
    said: frozenset[tuple[str, str]] = frozenset()
    """Where the file gives `enabled` or `condition` explicitly: (`blade r1/b3`, `enabled`), folded.

    Elsewhere a load keeps the stored value.
    """

    def records(self) -> dict[str, Hardware]:
        """Return every record by its key, from above to below."""
        records: dict[str, Hardware] = {REGION.fill(region=region.name): region for region in self.regions}
        records |= {ZONE.fill(region=zone.region, zone=zone.name): zone for zone in self.zones}
        for full in self.racks:
            records.update(full.records())
        return records

    def nodes(self) -> Iterator[tuple[str, FullRack, Blade]]:
        """Yield every blade, by the id of its node."""
        for full in self.racks:
            for blade in full.blades:
                yield fold(node_id(full.rack.name, blade.name)), full, blade

    def rack(self, name: str) -> FullRack | None:
        """Return one rack by its name, in any case."""
        return next((full for full in self.racks if fold(full.rack.name) == fold(name)), None)


def read_inventory(text: str | bytes, file: str = "inventory", *, most: int = check.MOST_ALL) -> Inventory:
    """Parse a file. Invalid: something is wrong; the message has a line for each error.

    `most`: largest number of racks, and of blades, that are parsed at all.
    """
    doubts = Doubts(file)
    inventory, _ = inventory_of_text(text, doubts, most=most)
    if inventory is None or doubts:
        raise Invalid("\n".join(doubts.lines()))
    return inventory


def inventory_of_text(
    text: str | bytes, doubts: Doubts, format_: str = HOSTLER, *, most: int = check.MOST_ALL
) -> tuple[Inventory | None, tuple[str, ...]]:
    """Parse a file of either format; return notes on what an import left out. Errors are added to `doubts`."""
    top = read(text, doubts, aliases=format_ == CLOUDCHAMBER)
    if top is None:
        return None, ()
    if format_ != CLOUDCHAMBER:
        return _Reading(most).inventory(top), ()
    translation = Translation()
    document = translation.document(top)
    return (None if doubts else _Reading(most).inventory(document)), translation.notes


def inventory_in(document: Any) -> Inventory:
    """Parse a JSON document. Invalid: as for `read_inventory`, with paths instead of lines."""
    doubts = Doubts()
    try:
        top = Piece(wrap(document), Location(), doubts)
    except Malformed as error:
        raise Invalid(f"inventory: {error.what}") from None
    inventory = inventory_of(top)
    if doubts:
        raise Invalid("\n".join(doubts.lines()) + "; correct the inventory")
    return inventory


def inventory_of(top: Piece) -> Inventory:
    """Parse a part of a file. Errors are added to its doubts; then the result must not be used."""
    return _Reading().inventory(top)


# Parsing


class _Reading:
    def __init__(self, most: int = check.MOST_ALL) -> None:
        self._most = most
        self._regions: list[tuple[Region, Piece]] = []
        self._zones: list[tuple[Zone, Piece]] = []
        self._racks: list[tuple[FullRack, Piece]] = []
        self._blades = self._ports = 0
        self._said: set[tuple[str, str]] = set()

    def inventory(self, top: Piece) -> Inventory:
        if top.value is None:
            top.doubt("is empty; write regions or racks")
            return Inventory()
        fields = top.fields("regions", "racks")
        for piece in _items(fields, "regions"):
            self._region(piece)
        for piece in _items(fields, "racks"):
            self._rack(piece, "", "")
        self._check_names()
        for what, number, most in (
            ("racks", len(self._racks), self._most),
            ("blades", self._blades, self._most),
            ("ports", self._ports, check.MOST_ALL_PORTS),
        ):
            if number > most:
                more = "" if self._most == check.MOST_ALL else "; for more use: hostler inventory load FILE"
                top.doubt(f"more than {most} {what}{more}")
        return Inventory(
            regions=tuple(region for region, _ in self._regions),
            zones=tuple(zone for zone, _ in self._zones),
            racks=tuple(full for full, _ in self._racks),
            said=frozenset(self._said),
        )

    def _say(self, kind: str, name: str, piece: Piece) -> None:
        fields = piece.value if isinstance(piece.value, dict) else {}
        self._said.update(
            (f"{kind} {fold(name)}", field) for field in _OWN[1:] if field in fields and fields[field].value is not None
        )

    def _region(self, piece: Piece) -> None:
        fields = piece.fields(*_OWN, "zones")
        region = Region(**_own(piece, fields))
        self._regions.append((region, piece))
        self._say("region", region.name, piece)
        for zone in _items(fields, "zones"):
            self._zone(zone, region.name)

    def _zone(self, piece: Piece, region: str) -> None:
        fields = piece.fields(*_OWN, "racks")
        zone = Zone(region=region, **_own(piece, fields))
        self._zones.append((zone, piece))
        self._say("zone", f"{region}/{zone.name}", piece)
        for rack in _items(fields, "racks"):
            self._rack(rack, region, zone.name)

    def _rack(self, piece: Piece, region: str, zone: str) -> None:
        if max(self._blades, len(self._racks)) > self._most or self._ports > check.MOST_ALL_PORTS:
            return  # a short file can describe billions of blades
        fields = piece.fields(*_OWN, "location", "pdus", "tors", "blades")
        own = _own(piece, fields, rack=True)
        location = fields["location"].text(most=200) if "location" in fields else ""
        blades = _blades(fields["blades"]) if "blades" in fields else []
        names = [blade.name for blade, _ in blades]
        tors = tuple(_feed(Tor, item, names) for item in _items(fields, "tors")[: check.MOST_FEEDS + 1])
        fed = [*names, *(tor.name for tor in tors)]
        pdus = tuple(_feed(Pdu, item, fed) for item in _items(fields, "pdus")[: check.MOST_FEEDS + 1])
        full = FullRack(
            rack=Rack(region=region, zone=zone, location=location, **own),
            pdus=pdus,
            tors=tors,
            blades=tuple(blade for blade, _ in blades),
        )
        self._racks.append((full, piece))
        self._say_inside(full, piece, fields, [source for _, source in blades])
        self._blades += len(blades)
        self._ports += sum(len(pdu.ports) for pdu in pdus) + sum(len(tor.ports) for tor in tors)
        sources = [source for _, source in blades]
        for fault in check.rack_faults(full):
            place = _place(piece, fault.path, sources)
            if place is not None and place.path not in piece.doubts:  # follow-up errors are not reported
                piece.doubts.add(place, fault.what)

    def _say_inside(self, full: FullRack, piece: Piece, fields: dict[str, Piece], sources: Sequence[Piece]) -> None:
        rack = full.rack.name
        self._say("rack", rack, piece)
        for pdu, item in zip(full.pdus, _items(fields, "pdus")):
            self._say("pdu", f"{rack}/{pdu.name}", item)
        for tor, item in zip(full.tors, _items(fields, "tors")):
            self._say("tor", f"{rack}/{tor.name}", item)
        for blade, source in zip(full.blades, sources):
            self._say("blade", f"{rack}/{blade.name}", source)

    def _check_names(self) -> None:
        """Check that each name is unique; names inside a rack are checked there."""
        for kind, found in (
            ("region", [(region.name, piece) for region, piece in self._regions]),
            ("zone", [(f"{zone.region}/{zone.name}", piece) for zone, piece in self._zones]),
            ("rack", [(full.rack.name, piece) for full, piece in self._racks]),
        ):
            for at, first in check.twice(name for name, _ in found):
                name, piece = found[at]
                if not name.endswith(check.NO_NAME):
                    where = found[first][1].place
                    line = f" in line {where.line}" if where.line else ""
                    _field(piece, "name").doubt(f"there is a {kind} {name} already: {where.path}{line}")


def _items(fields: dict[str, Piece], name: str) -> list[Piece]:
    return fields[name].items() if name in fields else []


def _field(piece: Piece, name: str) -> Piece:
    return piece.fields().get(name, piece)


def _own(piece: Piece, fields: dict[str, Piece], *, rack: bool = False) -> dict[str, Any]:
    """Return the fields that every level has."""
    name = piece.missing("name") if "name" not in fields else fields["name"].text(least=1)
    fault = check.name_fault(name, rack=rack) if name else ""
    if fault:
        fields["name"].doubt(fault)
    return {"name": name or check.NO_NAME, **_standing(fields)}


def _standing(fields: dict[str, Piece]) -> dict[str, Any]:
    """Return whether it may be used."""
    return {
        "enabled": fields["enabled"].flag() if "enabled" in fields else True,
        "condition": Condition(fields["condition"].choice(*_CONDITIONS)) if "condition" in fields else _OPERATIONAL,
    }


def _feed(kind: type[F], piece: Piece, fed: Sequence[str]) -> F:
    """Parse a pdu or tor; `fed`: what it is wired to, unless given explicitly."""
    fields = piece.fields(*_OWN, "ports")
    if "ports" not in fields:
        piece.missing("ports")
    return kind(ports=_ports(fields["ports"], fed) if "ports" in fields else {}, **_own(piece, fields))


def _ports(piece: Piece, fed: Sequence[str]) -> dict[int, Port]:
    if not isinstance(piece.value, dict):
        if not isinstance(piece.value, int):
            piece.doubt("must be the number of ports, or a map of what each is wired to")
            return {}
        return default_ports(piece.whole(least=1, most=check.MOST_PORTS), fed)
    wired: dict[int, Port] = {}
    for key, node in piece.value.items():
        port = Piece(node, piece.place.field(key, node.key_line), piece.doubts)
        if not key.isascii() or not key.isdigit() or not 1 <= int(key[:9]) <= check.MOST_PORTS or key[0] == "0":
            port.doubt(f"a port is a number from 1 to {check.MOST_PORTS}")
        else:
            wired[int(key)] = _port(port)
    return {number: wired.get(number, _UNWIRED) for number in range(1, max(wired, default=0) + 1)}


def default_ports(number: int, fed: Sequence[str]) -> dict[int, Port]:
    """Wire port n to the nth item, and leave other ports unwired."""
    return {n: Port(wired=True, item=fed[n - 1]) if n <= len(fed) else _UNWIRED for n in range(1, number + 1)}


def _port(piece: Piece) -> Port:
    if piece.value is None:
        return _UNWIRED
    if not isinstance(piece.value, dict):
        return Port(wired=True, item=piece.text(least=1))
    fields = piece.fields("wired", "item")
    item = fields["item"].text(least=1) if "item" in fields else None
    return Port(wired=fields["wired"].flag() if "wired" in fields else item is not None, item=item)


def _blades(piece: Piece) -> list[tuple[Blade, Piece]]:
    """Return the blades, each with the piece that it was parsed from."""
    if isinstance(piece.value, dict):
        return [(blade, piece) for blade in _batch(piece)]
    found: list[tuple[Blade, Piece]] = []
    for item in piece.items():
        counted = isinstance(item.value, dict) and "count" in item.value
        found += [(blade, item) for blade in (_batch(item) if counted else _blade(item))]
        if len(found) > check.MOST_BLADES:
            break  # the number is reported later
    return found


def _blade(piece: Piece) -> list[Blade]:
    fields = piece.fields(*_OWN, *_CAPACITY, *_HAS, "labels")
    return [Blade(capacity=_capacity(fields), labels=_labels(fields), **_own(piece, fields))]


def _batch(piece: Piece) -> list[Blade]:
    """Return identical, numbered blades."""
    fields = piece.fields("count", "prefix", "first", *_OWN[1:], *_CAPACITY, *_HAS, "labels")
    if "count" not in fields:
        piece.missing("count")
        return []
    count = fields["count"].whole(least=1, most=check.MOST_BLADES)
    first = fields["first"].whole(least=0, most=10**9) if "first" in fields else 1
    prefix = fields["prefix"].text(most=check.LONGEST_NAME) if "prefix" in fields else PREFIX
    capacity, labels, standing = _capacity(fields), _labels(fields), _standing(fields)
    return [Blade(name=f"{prefix}{first + n}", capacity=capacity, labels=labels, **standing) for n in range(count)]


def _capacity(fields: dict[str, Piece]) -> Capacity:
    return Capacity(
        cpus=fields["cpus"].whole(least=1, most=check.CPUS) if "cpus" in fields else 0,
        memory_mib=_size(fields["memory"], 1, check.MEMORY_MIB) if "memory" in fields else 0,
        disk_gib=_size(fields["disk"], 0, check.DISK_GIB, unit=1024) if "disk" in fields else 0,
        network_mbps=fields["network_mbps"].whole(most=check.NETWORK_MBPS) if "network_mbps" in fields else 0,
    )


def _size(piece: Piece, least: int, most: int, *, unit: int = 1) -> int:
    """Return a size such as `64GiB`, in MiB times `unit`."""
    text = piece.text(least=1)
    if not text:
        return least
    try:
        size, rest = divmod(mebibytes_of(text), unit)
    except ValueError:
        size, rest = -1, 0
    if size < 0 or text.isdigit():
        piece.doubt(f"{text} is not a size; write a number with its unit, such as 64GiB")
    elif rest:
        piece.doubt(f"{text} is not a whole number of GiB")
    elif not least <= size <= most:
        name = "GiB" if unit > 1 else "MiB"
        piece.doubt(f"must be from {least}{name} to {most}{name}")
    else:
        return size
    return least


def _labels(fields: dict[str, Piece]) -> dict[str, str]:
    has = hardware_labels(fields["arch"].text(most=32) if "arch" in fields else "", *accelerators_and_volumes(fields))
    if "labels" not in fields:
        return has
    found = {name: piece.text(most=255) for name, piece in fields["labels"].fields().items()}
    if len(found) + len(has) > check.MOST_LABELS:
        fields["labels"].doubt(f"must be at most {check.MOST_LABELS}")
    for name in sorted(found.keys() & has.keys()):
        fields["labels"].doubt(f"{name} is given twice; leave the label out")
    return {**found, **has}


def _place(rack: Piece, path: check.Path, sources: Sequence[Piece]) -> Location | None:
    """Return the position of a fault in the file; None: it is not in the file, but follows from something else."""
    place, node, rest = rack.place, rack.node, path
    if path[0] == "blades" and len(path) > 1 and isinstance(path[1], int):
        source = sources[path[1]]
        place, node, rest = source.place, source.node, path[2:]
    for step in rest:
        if isinstance(node.value, dict):
            found = node.value.get(str(step))
            place = place.field(str(step), found.key_line if found is not None else 0)
        elif isinstance(node.value, list) and isinstance(step, int) and step < len(node.value):
            found = node.value[step]
            place = place.item(step, found.line)
        else:
            return None
        if found is None:
            break
        node = found
    return place


def _wired(feeds: tuple[F, ...], item: str) -> tuple[tuple[F, int], ...]:
    wanted = fold(item)
    return tuple(
        (feed, number)
        for feed in feeds
        for number, port in feed.ports.items()
        if port.wired and port.item is not None and fold(port.item) == wanted
    )
