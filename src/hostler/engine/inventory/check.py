"""What must be true of an inventory, as functions of its values. All that is wrong is told, with its place.

A place is a path in the document, from the rack on: `("pdus", 0, "ports", "3")`.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from hostler.errors import Invalid
from hostler.keys.segment import check_new
from hostler.kit.plural import counted
from hostler.model.name import fold

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hostler.engine.inventory.inventory_file import FullRack
    from hostler.model.inventory import Capacity, Pdu, Port, Tor

MOST_FEEDS = 2
"""Pdus, and tors, of a rack; at least one of each."""
MOST_BLADES = 1000
MOST_PORTS = 2000
MOST_ALL = 100_000
"""Blades of an inventory."""
MOST_ALL_PORTS = 1_000_000
NO_NAME = "?"
"""Stands in for a name that was not given."""
MOST_LABELS = 64
LONGEST_NAME = 63
CPUS, MEMORY_MIB, DISK_GIB, NETWORK_MBPS = 4096, 2**26, 2**20, 10_000_000
"""The most of each that a blade has: 64 TiB of memory, 1 PiB of disk, 10 Tbit/s."""

_BARRED = re.compile(r"[\s:]")

Path: TypeAlias = "tuple[str | int, ...]"


class Fault(NamedTuple):
    """Something that must not be."""

    path: Path
    what: str


def name_fault(name: str, *, rack: bool = False) -> str:
    """What is wrong with a name; empty: nothing."""
    try:
        check_new(fold(name), "name")
    except Invalid as error:
        return str(error).partition(": ")[2]
    if len(name) > LONGEST_NAME:
        return f"must have at most {LONGEST_NAME} characters"
    if _BARRED.search(name):
        return "must hold no space and no ':'"
    if rack and "-" in name:
        return "a rack's name holds no '-', for a node is called RACK-BLADE"
    return ""


def twice(names: Iterable[str]) -> Iterator[tuple[int, int]]:
    """For each name that stood before, in whatever case: its number, and that of the first."""
    seen: dict[str, int] = {}
    for at, name in enumerate(names):
        first = seen.setdefault(fold(name), at)
        if first != at and name:
            yield at, first


def rack_faults(full: FullRack) -> Iterator[Fault]:
    """All that is wrong with one rack."""
    yield from _counts(full)
    yield from _names(full)
    items = _items(full)
    feeders: tuple[tuple[str, tuple[Pdu | Tor, ...]], ...] = (("pdus", full.pdus), ("tors", full.tors))
    for kind, feeds in feeders:
        for at, feed in enumerate(feeds):
            yield from _port_faults((kind, at, "ports"), feed, len(full.blades))
            yield from _wiring_faults((kind, at, "ports"), feed, kind, items)
    for at, blade in enumerate(full.blades):
        yield from _capacity_faults(("blades", at), blade.capacity)
        if len(blade.labels) > MOST_LABELS:
            yield Fault(("blades", at, "labels"), f"must be at most {MOST_LABELS}")


def _counts(full: FullRack) -> Iterator[Fault]:
    for kind, feeds in (("pdus", full.pdus), ("tors", full.tors)):
        if not 1 <= len(feeds) <= MOST_FEEDS:
            yield Fault((kind,), f"a rack has 1 or {MOST_FEEDS}, not {len(feeds)}")
    if not 1 <= len(full.blades) <= MOST_BLADES:
        yield Fault(("blades",), f"a rack has from 1 to {MOST_BLADES}, not {len(full.blades)}")


def _names(full: FullRack) -> Iterator[Fault]:
    fault = name_fault(full.rack.name, rack=True)
    if fault:
        yield Fault(("name",), fault)
    places: list[tuple[str, int, str]] = []
    for kind, parts in (("pdus", full.pdus), ("tors", full.tors), ("blades", full.blades)):
        for at, part in enumerate(parts):
            fault = name_fault(part.name)
            if fault:
                yield Fault((kind, at, "name"), fault)
            places.append((kind, at, part.name))
    for at, first in twice(name for _, _, name in places):
        kind, number, name = places[at]
        if name != NO_NAME:
            other = f"{places[first][0].removesuffix('s')} {places[first][1] + 1} of the rack"
            yield Fault((kind, number, "name"), f"{name} is the name of {other} already; a rack holds each name once")


def _items(full: FullRack) -> Mapping[str, str]:
    """What each name in the rack is. The first one counts, where a name stands twice."""
    items: dict[str, str] = {}
    for kind, parts in (("pdu", full.pdus), ("tor", full.tors), ("blade", full.blades)):
        for part in parts:
            items.setdefault(fold(part.name), kind)
    return items


def _port_faults(path: Path, feed: Pdu | Tor, blades: int) -> Iterator[Fault]:
    ports = max(feed.ports, default=0)
    if ports < blades:
        yield Fault(path, f"{counted(ports, 'is', 'are')} too few for {counted(blades, 'blade')}")
    if ports > MOST_PORTS:
        yield Fault(path, f"{ports} are more than {MOST_PORTS}")
    if any(number < 1 for number in feed.ports):
        yield Fault(path, "ports count from 1")


def _wiring_faults(path: Path, feed: Pdu | Tor, kind: str, items: Mapping[str, str]) -> Iterator[Fault]:
    uses = Counter(fold(port.item) for port in feed.ports.values() if port.item)
    first: dict[str, int] = {}
    for number, port in sorted(feed.ports.items()):
        what = _port_fault(port, kind, items)
        if not what and port.item and uses[fold(port.item)] > 1:
            before = first.setdefault(fold(port.item), number)
            what = f"{port.item} is wired to port {before} already" if before != number else ""
        if what:
            yield Fault((*path, str(number)), what)


def _port_fault(port: Port, kind: str, items: Mapping[str, str]) -> str:
    if not port.wired:
        return f"an unwired port has no item, and this one has {port.item}" if port.item else ""
    if not port.item:
        return "a wired port names the item at the other end of its cable"
    found = items.get(fold(port.item))
    if found is None:
        return f"{port.item} is not in this rack"
    if kind == "tors" and found != "blade":
        return f"{port.item} is a {found}; the port of a tor takes a blade"
    if found == "pdu":
        return f"{port.item} is a pdu; the port of a pdu takes a blade or a tor"
    return ""


def _capacity_faults(path: Path, capacity: Capacity) -> Iterator[Fault]:
    """0: not said, and then what the agent says counts."""
    for field, value, most, unit in (
        ("cpus", capacity.cpus, CPUS, ""),
        ("memory", capacity.memory_mib, MEMORY_MIB, "MiB"),
        ("disk", capacity.disk_gib, DISK_GIB, "GiB"),
        ("network_mbps", capacity.network_mbps, NETWORK_MBPS, ""),
    ):
        if not 0 <= value <= most:
            yield Fault((*path, field), f"must be from {1 if field in ('cpus', 'memory') else 0}{unit} to {most}{unit}")
