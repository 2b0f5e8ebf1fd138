"""HTTP API types for nodes and the inventory. The rules are those of `hostler.model.vm_api`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from hostler.model.inventory import Capacity, Condition, HardwareFlow, Port
from hostler.model.node import DrainMode, Lifecycle, OffConfirmation
from hostler.model.record import OpenEnum, Record

HOSTLER, CLOUDCHAMBER = "hostler", "cloudchamber"
"""Formats of inventory files: Hostler's own (docs/inventory.md) and CloudChamber's."""
Levels = Annotated[tuple[dict[str, Any], ...], Meta(max_length=10_000)]


class InventoryDocument(Record, frozen=True, kw_only=True):
    """The content of an inventory file (docs/inventory.md), in JSON."""

    kind = "inventory"

    regions: Levels = ()
    racks: Levels = ()
    """Racks without a region."""
    agreed: Annotated[str, Meta(max_length=64)] = ""
    """The `digest` of the plan that the user confirmed. If the plan has changed since, nothing is written."""
    notes: tuple[str, ...] = ()
    """Parts of a file that the import omitted or changed. A load ignores this field."""


class CurrentInventory(Record, frozen=True, kw_only=True):
    """The current inventory, in the form of an inventory file."""

    regions: tuple[dict[str, Any], ...]
    racks: tuple[dict[str, Any], ...]
    revision: int


InventoryShown = CurrentInventory
"""The old name, for one release."""


class FieldChange(Record, frozen=True, kw_only=True):
    """A change of one field. Empty: no value."""

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
    """For a change: the fields that differ."""


class InventoryPlan(Record, frozen=True, kw_only=True):
    """The effects of a load, in the order of execution."""

    changes: tuple[InventoryChange, ...]
    refused: tuple[str, ...] = ()
    """Why it cannot be loaded."""
    notes: tuple[str, ...] = ()
    """Remarks for the user."""
    digest: str
    """Identifies this exact plan; empty: there is nothing to do."""
    revision: int


class InventoryLoaded(Record, frozen=True, kw_only=True):
    """The result of a load."""

    added: int = 0
    changed: int = 0
    removed: int = 0
    revision: int
    """If all three are 0: the revision at which nothing differed."""


class HardwareSet(Record, frozen=True, kw_only=True):
    """Changes to the usability of hardware; omitted fields stay unchanged."""

    enabled: bool | UnsetType = UNSET
    condition: Condition | UnsetType = UNSET


class HardwareView(Record, frozen=True, kw_only=True):
    """A piece of hardware in the inventory."""

    level: str
    name: str
    enabled: bool
    condition: Condition
    revision: int


class ZoneView(Record, frozen=True, kw_only=True):
    """A zone with its number of racks."""

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
    """All regions, ordered by name."""

    items: tuple[RegionView, ...]
    after: str | None
    revision: int


class RackView(Record, frozen=True, kw_only=True):
    """A rack with its usage."""

    name: str
    region: str
    zone: str
    location: str
    enabled: bool
    condition: Condition
    objection: str
    """Why its nodes accept no VMs because of the rack or the hardware above it; empty: they may accept VMs."""
    pdus: int
    tors: int
    blades: int
    nodes: int
    """Number of blades whose agents have registered."""
    on_duty: int
    """Number of nodes that accept VMs."""
    used: Capacity
    capacity: Capacity
    """Capacity of the registered nodes."""
    vms: int
    flow: HardwareFlow | None = None
    """Progress of its burn-in or retirement, with reason and blocker; None: neither is in progress."""
    revision: int


class RackPage(Record, frozen=True, kw_only=True):
    """A page of racks, ordered by name."""

    items: tuple[RackView, ...]
    after: str | None
    revision: int


class FeedView(Record, frozen=True, kw_only=True):
    """A PDU or ToR switch."""

    name: str
    enabled: bool
    condition: Condition
    ports: dict[int, Port]
    revision: int


class FeedPage(Record, frozen=True, kw_only=True):
    """The PDUs or ToR switches of a rack. The first is the one at the contract's single key."""

    items: tuple[FeedView, ...]
    after: str | None
    revision: int


class BladeView(Record, frozen=True, kw_only=True):
    """A blade and its node."""

    name: str
    node: str
    enabled: bool
    condition: Condition
    capacity: Capacity
    """As specified in the inventory; 0: not specified, and the agent's value is used."""
    labels: dict[str, str]
    pdus: tuple[str, ...]
    tors: tuple[str, ...]
    objection: str
    """Why the inventory excludes its node from placement; empty: it does not."""
    lifecycle: Lifecycle | None
    """Lifecycle of its node; None: no agent has registered yet."""
    alive: bool
    used: Capacity
    vms: int
    machines: tuple[str, ...]
    """`org/project/name` of the first few VMs that the caller may see."""
    flow: HardwareFlow | None = None
    """Progress of its burn-in or retirement, with reason and blocker; None: neither is in progress."""
    revision: int


class BladePage(Record, frozen=True, kw_only=True):
    """A page of blades, ordered by key."""

    items: tuple[BladeView, ...]
    after: str | None
    revision: int


class RackDetail(Record, frozen=True, kw_only=True):
    """A rack and everything in it."""

    rack: RackView
    pdus: tuple[FeedView, ...]
    tors: tuple[FeedView, ...]
    blades: tuple[BladeView, ...]
    """In natural order: b2 before b10."""
    unlisted: tuple[str, ...]
    """Nodes that registered with this rack but are not in the inventory."""
    revision: int


class Standing(OpenEnum):
    """Summary state of a blade, derived from its node and the inventory."""

    ON_DUTY = "on_duty"
    """It accepts VMs."""
    OUT_OF_USE = "out_of_use"
    """The node is reachable; the inventory or the node itself excludes it from placement."""
    DRAINING = "draining"
    JOINING = "joining"
    SILENT = "silent"
    """The node is unreachable."""
    OFF = "off"
    """The node is unreachable and confirmed off."""
    OUT_FOR_REPAIR = "out_for_repair"
    DRAINED = "drained"
    """The node is decommissioned: it has no VMs and accepts none."""
    LEFT = "left"
    """The agent announced that it is shutting down."""
    NO_NODE = "no_node"
    """No agent has registered for this blade."""


class FloorFeed(Record, frozen=True, kw_only=True):
    """Summary of a PDU or ToR switch."""

    name: str
    enabled: bool
    condition: Condition


class FloorRack(Record, frozen=True, kw_only=True):
    """Summary of a rack. `blades`, `states` and `vms` have one element per blade, in natural order."""

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
    """All racks, ordered by region, zone and name, and the nodes without a rack."""

    racks: tuple[FloorRack, ...]
    nodes: tuple[str, ...]
    """Registered nodes that are not in the inventory; empty if only some racks were requested."""
    states: tuple[Standing, ...]
    """States of these nodes."""
    vms: tuple[int, ...]
    """Number of VMs of these nodes."""
    simulation: bool = False
    """Whether this is a simulation, so that `GET /v1/sim` is available."""
    revision: int


class InventoryText(Record, frozen=True, kw_only=True):
    """The text of an inventory file, in YAML or JSON."""

    text: str
    file: Annotated[str, Meta(max_length=255)] = "inventory"
    """File name for error messages."""
    format: Literal["hostler", "cloudchamber"] = "hostler"


# Nodes


class Drain(Record, frozen=True, kw_only=True):
    """How to drain a node."""

    mode: DrainMode = DrainMode.MOVE
    drop_snapshots: bool = False
    """Move VMs even though their snapshots are lost. Without this, VMs with snapshots stay."""


class NodeView(Record, frozen=True, kw_only=True):
    """A node and its usage."""

    node: str
    lifecycle: Lifecycle
    alive: bool
    capacity: Capacity
    used: Capacity
    vms: int
    labels: dict[str, str]
    rack: str | None
    pdus: tuple[str, ...]
    tors: tuple[str, ...]
    address: str
    driver: str
    fences: bool
    moves: bool
    images: tuple[str, ...] | None
    facts: dict[str, str]
    refuses: str
    objection: str = ""
    """Why the inventory excludes it from placement; empty: it does not."""
    drain: DrainMode
    off: OffConfirmation | None
    awaited: bool = False
    """It has not registered since the store was copied or restored; its VMs wait for it."""
    registered_at: float
    revision: int


class BrakeView(Record, frozen=True, kw_only=True):
    """The brake on mass failure: while it holds, no node is switched off and no VM is taken from its node."""

    held: bool
    nodes: tuple[str, ...] = ()
    """Nodes that became unreachable together and are not back."""
    of: int = 0
    """Total number of nodes."""
    cause: str = ""
    """What these nodes have in common."""
    since: float | None = None
    released_by: str = ""
    """The account that released it; empty: not released."""
    released_at: float | None = None
    revision: int = 0


class NodePage(Record, frozen=True, kw_only=True):
    """A page of nodes, ordered by name."""

    items: tuple[NodeView, ...]
    after: str | None
    revision: int
