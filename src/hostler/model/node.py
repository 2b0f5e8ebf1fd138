"""Nodes: what an agent says of itself, and what the leader tells it to do."""

from __future__ import annotations

import enum

from msgspec import field

from hostler.errors import Invalid
from hostler.model.inventory import Capacity
from hostler.model.record import Record
from hostler.model.vm import Id, Power, VmSpec


class Lifecycle(enum.StrEnum):
    """Where a node is between arriving and leaving."""

    JOINING = "JOINING"
    ON_DUTY = "ON_DUTY"
    DRAINING = "DRAINING"
    DECOMMISSIONED = "DECOMMISSIONED"
    SHUTTING_DOWN = "SHUTTING_DOWN"


class NodeRecord(Record, frozen=True, kw_only=True):
    """`/hostler/v1/members/{node}`: a node that registered. It stays when the node falls silent."""

    node: Id
    lifecycle: Lifecycle
    capacity: Capacity
    labels: dict[str, str] = field(default_factory=dict)
    rack: str | None = None
    pdus: tuple[str, ...] = ()
    tors: tuple[str, ...] = ()
    address: str = ""
    driver: str = ""
    registered_at: float


class Heartbeat(Record, frozen=True, kw_only=True):
    """`/hostler/v1/alive/{node}`: attached to the agent's lease; gone means silent."""

    holder: str
    """Unique to the agent's process."""
    started_at: float


class VmCommand(Record, frozen=True, kw_only=True):
    """`/hostler/v1/nodes/{node}/vms/{vm}`: what the node shall make true. Written by the leader, under its fence."""

    org: Id
    project: Id
    vm: Id
    spec: VmSpec
    power: Power = Power.ON
    deleting: bool = False
    generation: int = 1
    fence: int = 0


def node_id(rack: str, blade: str) -> str:
    """The node that a blade is: `{rack}-{blade}`."""
    if not rack or not blade or "-" in rack:
        raise Invalid(f"node of rack {rack!r} and blade {blade!r}: neither is empty, and a rack's id holds no '-'")
    return f"{rack}-{blade}"


def split_node_id(node: str) -> tuple[str, str]:
    """Rack and blade of a node."""
    rack, dash, blade = node.partition("-")
    if not rack or not dash or not blade:
        raise Invalid(f"node {node!r}: must be {{rack}}-{{blade}}")
    return rack, blade
