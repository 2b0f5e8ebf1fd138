"""What the HTTP API takes and gives of the inventory. The rules are those of `hostler.model.api`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from hostler.model.inventory import Capacity, Condition, HardwareFlow, Port
from hostler.model.node import Lifecycle
from hostler.model.record import OpenEnum, Record

HOSTLER, CLOUDCHAMBER = "hostler", "cloudchamber"
"""Formats of inventory files: that of docs/inventory.md, and that of CloudChamber."""
Levels = Annotated[tuple[dict[str, Any], ...], Meta(max_length=10_000)]


class InventoryDocument(Record, frozen=True, kw_only=True):
    """The inventory as its file has it (docs/inventory.md), in JSON."""

    kind = "inventory"

    regions: Levels = ()
    racks: Levels = ()
    """Of no region."""
    agreed: Annotated[str, Meta(max_length=64)] = ""
    """The `digest` of the plan that somebody agreed to: if it would be another one by now, nothing is written."""
    notes: tuple[str, ...] = ()
    """What the import of a file left out or changed. A load ignores it."""


class InventoryShown(Record, frozen=True, kw_only=True):
    """The present inventory, as a file could have it."""

    regions: tuple[dict[str, Any], ...]
    racks: tuple[dict[str, Any], ...]
    revision: int


class FieldChange(Record, frozen=True, kw_only=True):
    """One field of a record. Empty: there is nothing."""

    field: str
    old: str
    new: str


class InventoryChange(Record, frozen=True, kw_only=True):
    """One record that is added, changed or removed."""

    what: str
    """`add`, `change` or `remove`."""
    level: str
    """`region`, `zone`, `rack`, `pdu`, `tor` or `blade`."""
    name: str
    """`eu`, `eu/eu-1`, `r1`, `r1/pdu1`, `r1/b3`."""
    fields: tuple[FieldChange, ...] = ()
    """Of a change: what differs."""


class InventoryPlan(Record, frozen=True, kw_only=True):
    """What a load would do, in the order in which it is done."""

    changes: tuple[InventoryChange, ...]
    refused: tuple[str, ...] = ()
    """Why it cannot be loaded as it is."""
    notes: tuple[str, ...] = ()
    """What is worth a look."""
    digest: str
    """Names this very plan; empty: there is nothing to do."""
    revision: int


class InventoryLoaded(Record, frozen=True, kw_only=True):
    """A load that is done."""

    added: int = 0
    changed: int = 0
    removed: int = 0
    revision: int
    """0 in all three: the one at which nothing differed."""


class HardwareSet(Record, frozen=True, kw_only=True):
    """Whether something may be used. What is left out stays."""

    enabled: bool | UnsetType = UNSET
    condition: Condition | UnsetType = UNSET


class HardwareView(Record, frozen=True, kw_only=True):
    """Anything in the inventory."""

    level: str
    name: str
    enabled: bool
    condition: Condition
    revision: int


class ZoneView(Record, frozen=True, kw_only=True):
    """A zone, and how many racks it has."""

    name: str
    enabled: bool
    condition: Condition
    racks: int
    revision: int


class RegionView(Record, frozen=True, kw_only=True):
    """A region and its zones."""

    name: str
    enabled: bool
    condition: Condition
    zones: tuple[ZoneView, ...]
    revision: int


class RegionPage(Record, frozen=True, kw_only=True):
    """All regions, in order of their names."""

    items: tuple[RegionView, ...]
    after: str | None
    revision: int


class RackView(Record, frozen=True, kw_only=True):
    """A rack in a list."""

    name: str
    region: str
    zone: str
    location: str
    enabled: bool
    condition: Condition
    objection: str
    """Why no node of it takes machines, as far as the rack and what is above it are concerned; empty: they may."""
    pdus: int
    tors: int
    blades: int
    nodes: int
    """Blades whose agents have registered."""
    on_duty: int
    """Nodes that take machines."""
    used: Capacity
    capacity: Capacity
    """Of the nodes that registered."""
    vms: int
    flow: HardwareFlow | None = None
    """How far its burn-in or retirement is, why, and what blocks it; None: it is in none."""
    revision: int


class RackPage(Record, frozen=True, kw_only=True):
    """Racks in order of their names."""

    items: tuple[RackView, ...]
    after: str | None
    revision: int


class FeedView(Record, frozen=True, kw_only=True):
    """A pdu or tor."""

    name: str
    enabled: bool
    condition: Condition
    ports: dict[int, Port]
    revision: int


class FeedPage(Record, frozen=True, kw_only=True):
    """The pdus, or tors, of a rack; the first is that of the contract's single key."""

    items: tuple[FeedView, ...]
    after: str | None
    revision: int


class BladeView(Record, frozen=True, kw_only=True):
    """A blade, and the node that it is."""

    name: str
    node: str
    enabled: bool
    condition: Condition
    capacity: Capacity
    """As the inventory says; 0: it says nothing, and what the agent says counts."""
    labels: dict[str, str]
    pdus: tuple[str, ...]
    tors: tuple[str, ...]
    objection: str
    """Why the inventory keeps its node from taking machines; empty: it does not."""
    lifecycle: Lifecycle | None
    """Of its node; None: no agent has registered yet."""
    alive: bool
    used: Capacity
    vms: int
    machines: tuple[str, ...]
    """`org/project/name` of those that the caller sees, the first few."""
    flow: HardwareFlow | None = None
    """How far its burn-in or retirement is, why, and what blocks it; None: it is in none."""
    revision: int


class BladePage(Record, frozen=True, kw_only=True):
    """Blades in order of their keys."""

    items: tuple[BladeView, ...]
    after: str | None
    revision: int


class RackDetail(Record, frozen=True, kw_only=True):
    """A rack and all that is in it."""

    rack: RackView
    pdus: tuple[FeedView, ...]
    tors: tuple[FeedView, ...]
    blades: tuple[BladeView, ...]
    """As people sort them: b2 before b10."""
    unlisted: tuple[str, ...]
    """Nodes that registered as of this rack, and are not in the inventory."""
    revision: int


class Standing(OpenEnum):
    """What one sees of a blade from afar: its node and the inventory in one word."""

    ON_DUTY = "on_duty"
    """It takes machines."""
    OUT_OF_USE = "out_of_use"
    """Its node lives; the inventory, or the node itself, keeps new machines away."""
    DRAINING = "draining"
    JOINING = "joining"
    SILENT = "silent"
    """No sign of life comes from it."""
    OFF = "off"
    """Silent, and somebody stands for it that nothing runs there."""
    OUT_FOR_REPAIR = "out_for_repair"
    DRAINED = "drained"
    """Nothing is left on it, and it takes nothing: decommissioned."""
    LEFT = "left"
    """Its agent has said that it goes."""
    NO_NODE = "no_node"
    """No agent has registered for it."""


class FloorFeed(Record, frozen=True, kw_only=True):
    """A pdu or tor from afar."""

    name: str
    enabled: bool
    condition: Condition


class FloorRack(Record, frozen=True, kw_only=True):
    """A rack from afar. `blades`, `states` and `vms` are of the same length: a blade each, as people sort them."""

    name: str
    region: str
    zone: str
    location: str
    enabled: bool
    condition: Condition
    objection: str
    """As in `RackView`."""
    pdus: tuple[FloorFeed, ...]
    tors: tuple[FloorFeed, ...]
    blades: tuple[str, ...]
    states: tuple[Standing, ...]
    vms: tuple[int, ...]


class FloorView(Record, frozen=True, kw_only=True):
    """Every rack, in order of region, zone and name, and the nodes that are in none."""

    racks: tuple[FloorRack, ...]
    nodes: tuple[str, ...]
    """That registered, and are not in the inventory; none, where only some racks were asked for."""
    states: tuple[Standing, ...]
    """Of these nodes."""
    vms: tuple[int, ...]
    """Of these nodes."""
    simulation: bool = False
    """Whether all of it is simulated: `GET /v1/sim` answers."""
    revision: int


class InventoryText(Record, frozen=True, kw_only=True):
    """The text of an inventory file: YAML, or JSON."""

    text: str
    file: Annotated[str, Meta(max_length=255)] = "inventory"
    """What mistakes are told to be in."""
    format: Literal["hostler", "cloudchamber"] = "hostler"
