"""Export of the inventory: from records to the inventory, and to the document that yields the same records."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeAlias

from hostler.engine.inventory.inventory_file import PREFIX, FullRack, Inventory, default_ports, inventory_of_text
from hostler.errors import Invalid
from hostler.keys.families import BLADE, MORE_PDUS, MORE_TORS, PDU, RACK, TOR
from hostler.kit.yaml import Doubts
from hostler.model.inventory import Blade, Condition, Pdu, Rack, Region, Tor, Zone
from hostler.model.inventory_api import HOSTLER, InventoryDocument
from hostler.model.name import fold

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hostler.model.inventory import Capacity, Hardware, Port

_Said: TypeAlias = "frozenset[tuple[str, str]]"
MOST_READ = 20_000
"""Largest number of racks, and of blades, in a file that a server parses."""
_DIGITS = re.compile(r"(\d+)")


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a natural sort key: b2 before b10."""
    parts = _DIGITS.split(fold(name))
    return tuple((0, int(part), part) if part.isdecimal() else (1, 0, part) for part in parts if part)


def inventory_from(records: Mapping[str, Hardware]) -> Inventory:
    """Return the inventory of these records, by key; parts of a rack without a record are left out."""
    regions = [record for record in records.values() if isinstance(record, Region)]
    zones = [record for record in records.values() if isinstance(record, Zone)]
    racks = {key: record for key, record in records.items() if isinstance(record, Rack)}
    inside: dict[str, list[tuple[int, Hardware]]] = {}
    for key, record in records.items():
        found = _part(key, record)
        if found is not None:
            inside.setdefault(found[0], []).append((found[1], record))
    full = [_full(rack, inside.get(RACK.parse(key)["rack"], [])) for key, rack in racks.items()]
    return Inventory(
        regions=tuple(sorted(regions, key=lambda region: natural(region.name))),
        zones=tuple(sorted(zones, key=lambda zone: (natural(zone.region), natural(zone.name)))),
        racks=tuple(sorted(full, key=lambda each: natural(each.rack.name))),
    )


def _part(key: str, record: Hardware) -> tuple[str, int] | None:
    """Return the rack of a record, and its number among the parts of its kind."""
    if isinstance(record, Blade):
        return BLADE.parse(key)["rack"], 0
    for kind, only, more in ((Pdu, PDU, MORE_PDUS), (Tor, TOR, MORE_TORS)):
        if isinstance(record, kind):
            parts = only.match(key)
            if parts is not None:
                return parts["rack"], 1
            parts = more.parse(key)
            return parts["rack"], int(parts["n"])
    return None


def _full(rack: Rack, inside: Sequence[tuple[int, Hardware]]) -> FullRack:
    ordered = sorted(inside, key=lambda found: found[0])
    blades = [record for _, record in inside if isinstance(record, Blade)]
    return FullRack(
        rack=rack,
        pdus=tuple(record for _, record in ordered if isinstance(record, Pdu)),
        tors=tuple(record for _, record in ordered if isinstance(record, Tor)),
        blades=tuple(sorted(blades, key=lambda blade: natural(blade.name))),
    )


def read_document(text: str, file: str, format_: str = HOSTLER) -> InventoryDocument:
    """Return the document of a file. Invalid: something is wrong, or it is larger than a server accepts."""
    doubts = Doubts(file)
    found, notes = inventory_of_text(text, doubts, format_, most=MOST_READ)
    if found is None or doubts:
        raise Invalid("\n".join(doubts.lines()))
    return api_document(found, notes)


def api_document(inventory: Inventory, notes: tuple[str, ...] = ()) -> InventoryDocument:
    """Return the document for the HTTP API. `notes`: what an import left out."""
    document = document_of(inventory)
    regions, racks = (tuple(document.get(name, ())) for name in ("regions", "racks"))
    return InventoryDocument(regions=regions, racks=racks, notes=notes)


def document_of(inventory: Inventory) -> dict[str, Any]:
    """Return the document as maps, lists and scalars.

    Parsing it yields the same records and the same explicit fields.
    """
    said = inventory.said
    racks: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for full in inventory.racks:
        racks.setdefault((fold(full.rack.region), fold(full.rack.zone)), []).append(_rack(full, said))
    zones: dict[str, list[dict[str, Any]]] = {}
    for zone in inventory.zones:
        inside = racks.pop((fold(zone.region), fold(zone.name)), [])
        zones.setdefault(fold(zone.region), []).append(
            {**_own(zone, f"zone {zone.region}/{zone.name}", said), "racks": inside}
        )
    regions = [
        {**_own(region, f"region {region.name}", said), "zones": zones.get(fold(region.name), [])}
        for region in inventory.regions
    ]
    rest = [rack for found in racks.values() for rack in found]
    return {**({"regions": regions} if regions else {}), **({"racks": rest} if rest or not regions else {})}


def _own(record: Hardware, address: str, said: _Said) -> dict[str, Any]:
    own: dict[str, Any] = {"name": record.name}
    if not record.enabled or (fold(address), "enabled") in said:
        own["enabled"] = record.enabled
    if record.condition is not Condition.OPERATIONAL or (fold(address), "condition") in said:
        own["condition"] = str(record.condition)
    return own


def _rack(full: FullRack, said: _Said) -> dict[str, Any]:
    rack = full.rack.name
    names = [blade.name for blade in full.blades]
    fed = [*names, *(tor.name for tor in full.tors)]
    return {
        **_own(full.rack, f"rack {rack}", said),
        **({"location": full.rack.location} if full.rack.location else {}),
        "pdus": [{**_own(pdu, f"pdu {rack}/{pdu.name}", said), "ports": _ports(pdu.ports, fed)} for pdu in full.pdus],
        "tors": [{**_own(tor, f"tor {rack}/{tor.name}", said), "ports": _ports(tor.ports, names)} for tor in full.tors],
        "blades": _blades(rack, full.blades, said),
    }


def _ports(ports: Mapping[int, Port], fed: Sequence[str]) -> int | dict[str, str | None]:
    number = max(ports, default=0)
    if ports == default_ports(number, fed):
        return number
    shown = {str(n): port.item for n, port in sorted(ports.items()) if port.wired}
    return shown if str(number) in shown else {**shown, str(number): None}


def _blades(rack: str, blades: Sequence[Blade], said: _Said) -> dict[str, Any] | list[dict[str, Any]]:
    """Return the blades; as a count, if all are alike and numbered."""
    shapes = [_shape(blade, f"blade {rack}/{blade.name}", said) for blade in blades]
    first = _DIGITS.split(blades[0].name) if blades else []
    if len(first) == 3 and not first[2]:
        prefix, start = first[0], int(first[1])
        names = [f"{prefix}{start + n}" for n in range(len(blades))]
        if names == [blade.name for blade in blades] and all(shape == shapes[0] for shape in shapes):
            head = {"count": len(blades), **({} if prefix == PREFIX else {"prefix": prefix})}
            return {**head, **({} if start == 1 else {"first": start}), **shapes[0]}
    return [{"name": blade.name, **shape} for blade, shape in zip(blades, shapes)]


def _shape(blade: Blade, address: str, said: _Said) -> dict[str, Any]:
    own = {name: value for name, value in _own(blade, address, said).items() if name != "name"}
    return {**own, **_capacity(blade.capacity), **({"labels": dict(blade.labels)} if blade.labels else {})}


def _capacity(capacity: Capacity) -> dict[str, Any]:
    shown = {
        "cpus": capacity.cpus,
        "memory": mebibytes(capacity.memory_mib),
        "disk": f"{capacity.disk_gib}GiB" if capacity.disk_gib else "",
        "network_mbps": capacity.network_mbps,
    }
    return {name: value for name, value in shown.items() if value}


def mebibytes(size: int) -> str:
    """Return a size as the document has it; empty: none."""
    return "" if not size else f"{size}MiB" if size % 1024 else f"{size // 1024}GiB"
