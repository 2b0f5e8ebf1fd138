"""Components of a scenario that faults can affect, by address."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.model.name import fold
from hostler.model.node import node_id

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostler.engine.inventory.inventory_file import FullRack, Inventory

KINDS = ("rack", "pdu", "tor", "blade", "power cable", "network cable", "replica")
GROUPS = {
    "racks": "rack",
    "pdus": "pdu",
    "tors": "tor",
    "blades": "blade",
    "power cables": "power cable",
    "network cables": "network cable",
    "replicas": "replica",
}
"""Values of `on` in a chance that mean all components of a kind."""


class Components:
    """All addresses of some inventories, and the replicas, with their kinds; in the order of the file."""

    def __init__(self, inventories: Iterable[Inventory], replicas: int) -> None:
        self.kinds: dict[str, str] = {}
        self.above: dict[str, None] = {}
        """Regions, and zones as `region/zone`."""
        for inventory in inventories:
            for region in inventory.regions:
                self.above[fold(region.name)] = None
            for zone in inventory.zones:
                self.above[f"{fold(zone.region)}/{fold(zone.name)}"] = None
            for full in inventory.racks:
                self._rack(full)
        for number in range(1, replicas + 1):
            self.kinds[f"replica-{number}"] = "replica"

    def of(self, *kinds: str) -> tuple[str, ...]:
        """Return the addresses of these kinds."""
        return tuple(address for address, kind in self.kinds.items() if kind in kinds)

    def nodes(self, on: str) -> tuple[str, ...] | None:
        """Return the nodes of a blade or rack; None: no such blade or rack."""
        kind = self.kinds.get(fold(on))
        if kind == "blade":
            return (node_id(*fold(on).split("/")),)
        if kind == "rack":
            start = f"{fold(on)}/"
            return tuple(node_id(*blade.split("/")) for blade in self.of("blade") if blade.startswith(start))
        return None

    def level(self, on: str) -> str | None:
        """Return `region`, `zone`, `rack`, or `part` of a rack; None: no such hardware."""
        if fold(on) in self.above:
            return "zone" if "/" in on else "region"
        kind = self.kinds.get(fold(on))
        if kind == "rack":
            return kind
        return "part" if kind in ("pdu", "tor", "blade") else None

    def _rack(self, full: FullRack) -> None:
        rack = fold(full.rack.name)
        self.kinds[rack] = "rack"
        for kind, parts in (("pdu", full.pdus), ("tor", full.tors), ("blade", full.blades)):
            for part in parts:
                self.kinds[f"{rack}/{fold(part.name)}"] = kind
        for kind, feeds in (("power cable", full.pdus), ("network cable", full.tors)):
            for feed in feeds:
                for number, port in feed.ports.items():
                    if port.wired:
                        self.kinds[f"{rack}/{fold(feed.name)}:{number}"] = kind
