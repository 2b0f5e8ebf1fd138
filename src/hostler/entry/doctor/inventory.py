"""Checks of the inventory: inconsistent records, and nodes that are not in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.engine.inventory.check import rack_faults
from hostler.engine.inventory.export import inventory_from, natural
from hostler.engine.inventory.plan import rack_of
from hostler.keys.inventory import RACK, ZONE
from hostler.kit.plural import counted
from hostler.ports.finding import Finding, Level

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostler.engine.inventory.check import Fault
    from hostler.engine.inventory.inventory_file import Inventory
    from hostler.engine.view import View
    from hostler.model.inventory import Hardware

MOST = 20
"""Lines per kind of finding."""
_FILE = "correct the file and load it again: hostler inventory show -o yaml, hostler inventory load FILE"


def inventory(view: View) -> list[Finding]:
    """Return the findings; empty without an inventory."""
    mirrors = view.inventory.mirrors.values()
    records: dict[str, Hardware] = {key: entry.value for mirror in mirrors for key, entry in mirror.entries.items()}
    if not records:
        return []
    whole = inventory_from(records)
    found: list[Finding] = []
    for lines, advice in (
        (_unlisted(view), "add its blade to the inventory, or stop its agent and remove it: hostler node remove"),
        (_homeless(records), _FILE),
        (_wrong(whole), _FILE),
    ):
        told = list(lines)
        found += [Finding("inventory", Level.WARN, line, advice) for line in told[:MOST]]
        if len(told) > MOST:
            found.append(Finding("inventory", Level.WARN, f"{len(told) - MOST} more of this kind", advice))
    racks, blades = len(whole.racks), sum(len(full.blades) for full in whole.racks)
    return found or [Finding("inventory", Level.OK, f"{counted(racks, 'rack')}, {counted(blades, 'blade')}")]


def _unlisted(view: View) -> Iterator[str]:
    for node in sorted(view.inventory.unlisted(), key=natural):
        yield f"node {node} is not in the inventory, but its rack is: no machines are placed on it"


def _homeless(records: dict[str, Hardware]) -> Iterator[str]:
    """Yield records whose rack or zone has no record."""
    racks = {rack for key in records if (rack := rack_of(key)) and RACK.fill(rack=rack) not in records}
    for rack in sorted(racks, key=natural):
        yield f"rack {rack} has no record, but other records refer to it"
    for full in inventory_from(records).racks:
        top = full.rack
        if top.zone and ZONE.fill(region=top.region, zone=top.zone) not in records:
            yield f"rack {top.name} is in zone {top.region}/{top.zone}, which has no record"


def _wrong(whole: Inventory) -> Iterator[str]:
    for full in whole.racks:
        for fault in rack_faults(full):
            yield f"rack {full.rack.name}: {_path(fault)}: {fault.what}"


def _path(fault: Fault) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in fault.path).removeprefix(".")
