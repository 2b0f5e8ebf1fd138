"""A scenario as a value: a datacenter, its specs, the faults, and the invariants that must hold.

Random faults are drawn from a seed; the same seed always gives the same faults.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.engine.inventory.inventory_file import Inventory
from hostler.model.name import fold
from hostler.model.node import node_id
from hostler.sim.fault import FaultBase, fault_of, fields_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostler.engine.inventory.inventory_file import FullRack
    from hostler.model.deployment import Blueprint
    from hostler.model.lab import LabCatalogue
    from hostler.model.workload_api import WorkloadApply
    from hostler.sim.fault import Fault
    from hostler.sim.scenario.actions import Act, RequestedLab, RequestedVm


LONGEST = 7 * 86400.0
SETTLE = 120.0
INVARIANTS = (
    "no_vm_twice",
    "no_vm_lost",
    "no_stale_leader_write",
    "no_unreachable_endpoint",
    "rules_kept",
    "inventory_heeded",
    "rollout_kept",
    "no_early_end",
    "brake_kept",
    "disks_kept",
    "data_kept",
    "wishes_met",
    "pending_has_reason",
    "one_lab_per_user",
    "slice_moves_legal",
    "instance_numbers_unique",
    "endpoints_before_active",
    "needs_kept",
    "min_available_kept",
    "spread_kept",
    "retries_heeded",
    "blueprints_met",
)
"""All invariants. A scenario that names none checks all of them."""


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """An event of the timeline, and its time."""

    at: float
    """Seconds from the start."""
    what: Fault | Act
    written: dict[str, Any]
    """The event as written in the file, without `at`."""
    drawn: bool = False
    """Whether it was drawn, not taken from the timeline."""

    def document(self) -> dict[str, Any]:
        """Return the event as an item of a timeline."""
        if not isinstance(self.what, FaultBase):
            return {"at": _short(self.at)} | self.written
        fields = fields_of(self.what)
        return {"at": _short(self.at)} | {
            key: _short(value) if isinstance(value, float) else value for key, value in fields.items()
        }

    @property
    def told(self) -> str:
        """The event as one line of text."""
        if isinstance(self.what, FaultBase):
            return self.what.told()
        shown = (f"{key}={_brief(value)}" for key, value in self.written.items() if key != "do")
        return " ".join([str(self.written.get("do", "")), *shown])


class Chance(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that happens at random times to random components."""

    fields: dict[str, Any]
    """The fault, without `on` and `for`."""
    per_hour: float
    on: tuple[str, ...]
    """The possible components; empty: the fault names none."""
    least: float | None = None
    """The duration is from `least` to `most` seconds; None: the fault is momentary."""
    most: float | None = None


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a file. `document` is the file itself, with all includes resolved."""

    name: str
    about: str
    seed: int = 1
    length: float
    """Seconds. Then every fault is lifted, and the state must come to match the specs."""
    settle: float = SETTLE
    """Seconds in which it must match."""
    inventory: Inventory = Inventory()
    replicas: int = 2
    settings: dict[str, Any] = {}
    workloads: tuple[WorkloadApply, ...] = ()
    vms: tuple[RequestedVm, ...] = ()
    blueprints: dict[str, Blueprint] = {}
    """By name."""
    labs: tuple[RequestedLab, ...] = ()
    catalogue: LabCatalogue | None = None
    timeline: tuple[Moment, ...] = ()
    chances: tuple[Chance, ...] = ()
    invariants: tuple[str, ...] = INVARIANTS
    pending: int = 0
    """Machines that have no node for lack of capacity in the end: exactly so many."""
    given_up: tuple[str, ...] = ()
    """Slices (`group:name`) whose last version has failed in the end: exactly these."""
    document: dict[str, Any] = {}

    def with_timeline(self, moments: tuple[Moment, ...], *, seed: int, length: float | None = None) -> Scenario:
        """Return the scenario with this timeline and no random faults."""
        length = self.length if length is None else length
        document = {key: value for key, value in self.document.items() if key not in ("timeline", "chances")}
        document |= {"seed": seed, "length": _short(length)}
        if moments:
            document["timeline"] = [moment.document() for moment in moments]
        return msgspec.structs.replace(self, seed=seed, length=length, timeline=moments, chances=(), document=document)


def _short(number: float) -> float | int:
    """Return a whole number as an int, others rounded."""
    return int(number) if number == int(number) else round(number, 3)


def _brief(value: Any) -> str:
    if isinstance(value, dict):
        return str(value.get("name", "…"))
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


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


MOST = 10_000
"""Most faults that one chance draws in a run."""


def draw_moments(scenario: Scenario, seed: int) -> tuple[Moment, ...]:
    """Return all events of a run with this seed, by time: the timeline, and one moment for each drawn fault."""
    moments = list(scenario.timeline)
    for number, chance in enumerate(scenario.chances):
        rng = random.Random(f"{seed} chance {number}")  # noqa: S311 - no security
        moments += _draw(chance, scenario.length, rng)
    return tuple(sorted(moments, key=lambda moment: moment.at))  # stable: keeps the order of the file


def _draw(chance: Chance, length: float, rng: random.Random) -> list[Moment]:
    moments: list[Moment] = []
    at = 0.0
    while len(moments) < MOST:
        at = round(at + rng.expovariate(chance.per_hour / 3600.0), 3)
        if at >= length:
            break
        fields = dict(chance.fields)
        if chance.on:
            fields["on"] = rng.choice(chance.on)
        if chance.least is not None and chance.most is not None:
            fields["for"] = round(rng.uniform(chance.least, chance.most), 3)
        moments.append(Moment(at=at, what=fault_of(fields), written=fields, drawn=True))
    return moments
