"""Nodes, the brake on mass failure, and the inventory: regions, racks and their parts."""

from __future__ import annotations

from hostler.model.inventory_api import (
    BladePage,
    BladeView,
    BrakeView,
    CurrentInventory,
    Drain,
    FeedPage,
    FeedView,
    FloorView,
    HardwareSet,
    HardwareView,
    InventoryDocument,
    InventoryLoaded,
    InventoryPlan,
    InventoryText,
    NodePage,
    NodeView,
    RackDetail,
    RackPage,
    RackView,
    RegionPage,
)
from hostler.model.resources.operation import AFTER, LIMIT, STALE, Kind, Operation, Parameter, reads, writes

_LARGEST = 16 * 1024 * 1024
"""Largest size of an inventory in bytes."""
_LARGEST_TEXT = 6 * 1024 * 1024
"""Largest size in bytes of a file that is only parsed: the limit of the parser, plus the overhead of JSON."""
_FORGET_RETAINED = Parameter(
    "forget_retained",
    "Delete the records of its retained machines too; their disks stay in the node's folder.",
    "boolean",
    default=False,
)


class NodeApi:
    """Nodes, and the brake on mass failure."""

    _node = Kind(name="node", path="/v1/nodes", view=NodeView, page=NodePage, writers="modify_inventory")

    brake = reads(
        "brake.get",
        "/v1/brake",
        "The brake on mass failure: whether it holds, for which nodes, and what they have in common",
        BrakeView,
        about="While it holds, no node is switched off and no machine is taken from an unreachable node.",
    )
    release_brake = writes(
        "POST /v1/brake/release",
        "brake.release",
        "Release the brake: its nodes are fenced one at a time",
        BrakeView,
        "modify_inventory",
        conditional=True,
    )
    list = _node.list("All nodes")
    get = _node.get("A node and its allocation")
    drain = _node.act(
        "drain", "Drain a node: its machines are moved or stopped, one by one", body=Drain, body_optional=True
    )
    activate = _node.act("activate", "Put a drained node back in service")
    confirm_off = _node.act(
        "confirm-off",
        "Confirm that an unreachable node is off: its machines are started elsewhere",
        access="perform_repairs",
    )
    forget = _node.delete(
        "Delete the record of a node that is decommissioned, or unreachable and empty",
        name="node.forget",
        about="A node with retained machines is refused unless `forget_retained` is true.",
        query=(_FORGET_RETAINED,),
    )


def _set(path: str) -> Operation[HardwareView]:
    """Return the operation that enables or disables a part of the inventory."""
    what = path.rpartition("{")[2].removesuffix("}")
    return writes(
        f"PATCH {path}",
        f"{what}.set",
        f"Enable or disable a {what}, and set its condition",
        HardwareView,
        "modify_inventory",
        body=HardwareSet,
        conditional=True,
        about="Nodes below it get new machines only while it is enabled and operational; running machines stay.",
    )


class InventoryApi:
    """The inventory, whole and in parts."""

    _rack = Kind(name="rack", path="/v1/racks", view=RackView, page=RackPage)

    racks = _rack.list("All racks")
    rack = reads("rack.get", _rack.one, "A rack with its parts and the state of its nodes", RackDetail, query=(STALE,))
    pdu = _rack.look("pdu", "The first pdu of a rack", FeedView, query=(STALE,))
    pdus = _rack.look("pdus", "The pdus of a rack and their wiring", FeedPage, query=(STALE,))
    tor = _rack.look("tor", "The first tor of a rack", FeedView, query=(STALE,))
    tors = _rack.look("tors", "The tors of a rack and their wiring", FeedPage, query=(STALE,))
    blades = _rack.look("blades", "The blades of a rack", BladePage, query=(LIMIT, AFTER, STALE))
    blade = reads("blade.get", _rack.one + "/blades/{blade}", "A blade and its node", BladeView, query=(STALE,))
    regions = reads("region.list", "/v1/regions", "All regions and their zones", RegionPage, query=(STALE,))
    set_region = _set("/v1/regions/{region}")
    set_zone = _set("/v1/regions/{region}/zones/{zone}")
    set_rack = _set("/v1/racks/{rack}")
    set_pdu = _set("/v1/racks/{rack}/pdus/{pdu}")
    set_tor = _set("/v1/racks/{rack}/tors/{tor}")
    set_blade = _set("/v1/racks/{rack}/blades/{blade}")
    show = reads(
        "inventory.get",
        "/v1/inventory",
        "The whole inventory, as in an inventory file",
        CurrentInventory,
        query=(STALE,),
    )
    floor = reads(
        "floor.get",
        "/v1/inventory/summary",
        "Summary of all racks: one word for every blade",
        FloorView,
        former=("/v1/floor",),
        query=(Parameter("racks", "Only these, at most 200, separated by `/`.", example="r1/r2"),),
        about="Answered from memory, which lags slightly behind the store.",
    )
    read = writes(
        "POST /v1/inventory/read",
        "inventory.read",
        "Parse the text of an inventory file",
        InventoryDocument,
        "modify_inventory",
        body=InventoryText,
        idempotent=False,
        max_body=_LARGEST_TEXT,
        about="Nothing is written. YAML or JSON, as in docs/inventory.md; every mistake is reported with its line."
        " `format`: `cloudchamber` imports a file of CloudChamber; `notes` say what the import left out.",
    )
    plan = writes(
        "POST /v1/inventory/plan",
        "inventory.plan",
        "Plan a load: what it would add, change and remove",
        InventoryPlan,
        "modify_inventory",
        body=InventoryDocument,
        idempotent=False,
        max_body=_LARGEST,
        about="Nothing is written. The document is that of docs/inventory.md, in JSON.",
    )
    load = writes(
        "PUT /v1/inventory",
        "inventory.load",
        "Replace the inventory with a document",
        InventoryLoaded,
        "modify_inventory",
        body=InventoryDocument,
        errors=(412,),
        max_body=_LARGEST,
        about="What it does not contain is removed, unless the node has machines. Loading it again writes nothing.",
    )
