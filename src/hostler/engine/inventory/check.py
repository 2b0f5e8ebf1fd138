"""Rules of an inventory, as functions of its values. Every fault is reported with its position.

A position is a path in the document, from the rack on: `("pdus", 0, "ports", "3")`.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from hostler.errors import Invalid
from hostler.keys.template import check_new
from hostler.kit.plural import counted
from hostler.model.name import fold

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hostler.engine.inventory.inventory_file import FullRack
    from hostler.model.inventory import Capacity, Pdu, Port, Tor

MOST_FEEDS = 2
"""Largest number of pdus, and of tors, per rack; at least one of each."""
MOST_BLADES = 1000
MOST_PORTS = 2000
MOST_ALL = 100_000
"""Largest number of blades of an inventory."""
MOST_ALL_PORTS = 1_000_000
NO_NAME = "?"
"""Placeholder for a missing name."""
MOST_LABELS = 64
LONGEST_NAME = 63
CPUS, MEMORY_MIB, DISK_GIB, NETWORK_MBPS = 4096, 2**26, 2**20, 10_000_000
"""Largest values of a blade: 64 TiB of memory, 1 PiB of disk, 10 Tbit/s."""

_BARRED = re.compile(r"[\s:]")

Path: TypeAlias = "tuple[str | int, ...]"


class Fault(NamedTuple):
    """A violated rule."""

    path: Path
    what: str


def name_fault(name: str, *, rack: bool = False) -> str:
    """Return what is wrong with a name; empty: nothing."""
    try:
        check_new(fold(name), "name")
    except Invalid as error:
        return str(error).partition(": ")[2]
    if len(name) > LONGEST_NAME:
        return f"must have at most {LONGEST_NAME} characters"
    if _BARRED.search(name):
        return "must not contain a space or ':'"
    if rack and "-" in name:
        return "a rack's name must not contain '-', because a node is called RACK-BLADE"
    return ""


def twice(names: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Yield for each repeated name, regardless of case: its number, and that of the first."""
    seen: dict[str, int] = {}
    for at, name in enumerate(names):
        first = seen.setdefault(fold(name), at)
        if first != at and name:
            yield at, first


def rack_faults(full: FullRack) -> Iterator[Fault]:
    """Yield everything that is wrong with one rack."""
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
    """Return the kind of each name in the rack. If a name occurs twice, the first one counts."""
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
    """Check a capacity. 0: not given, and then the agent's value counts."""
    for field, value, most, unit in (
        ("cpus", capacity.cpus, CPUS, ""),
        ("memory", capacity.memory_mib, MEMORY_MIB, "MiB"),
        ("disk", capacity.disk_gib, DISK_GIB, "GiB"),
        ("network_mbps", capacity.network_mbps, NETWORK_MBPS, ""),
    ):
        if not 0 <= value <= most:
            yield Fault((*path, field), f"must be from {1 if field in ('cpus', 'memory') else 0}{unit} to {most}{unit}")
