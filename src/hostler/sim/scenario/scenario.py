"""A scenario as a value: a datacenter, its specs, the faults, and the invariants that must hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from hostler.engine.inventory.inventory_file import Inventory
from hostler.sim.fault import FaultBase, fields_of

if TYPE_CHECKING:
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
