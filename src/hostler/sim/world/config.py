"""What a world is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from hostler.engine.agent.config import FENCING_TIME, NODE_TTL
from hostler.engine.controllers.brake import FENCE_EVERY, SHARE, WINDOW
from hostler.engine.controllers.nodes import POWER_GRACE
from hostler.engine.controllers.retention import RETENTION
from hostler.engine.inventory.flow_controller import BURN_IN
from hostler.engine.inventory.inventory_file import Inventory
from hostler.engine.replica import LEADERSHIP_TTL
from hostler.errors import Invalid
from hostler.model.inventory import Capacity
from hostler.model.lab import LabCatalogue  # noqa: TC001 - msgspec reads annotations at run time
from hostler.model.name import fold
from hostler.model.node import split_node_id

if TYPE_CHECKING:
    from collections.abc import Iterator

SMALL = Capacity(cpus=16, memory_mib=64 * 1024, disk_gib=1024, network_mbps=10_000)
LOCK_TTL = 30.0


class BladePlan(msgspec.Struct, frozen=True, kw_only=True):
    """One blade, as its agent is told of it."""

    node: str
    """`r1-b3`."""
    capacity: Capacity = SMALL
    labels: dict[str, str] = {}
    pdus: tuple[str, ...] = ()
    """That it is wired to, as names of the whole cluster: `r1/pdu1`."""
    tors: tuple[str, ...] = ()
    images: tuple[str, ...] | None = None
    """What machines can be made of there; None: of anything."""
    fences: bool = True
    """Fenced machines stop there by themselves."""
    moves: bool = True
    """Its machines can be handed over as they run."""

    @property
    def rack(self) -> str:
        return split_node_id(self.node)[0]

    @property
    def component(self) -> str:
        """`r1/b3`."""
        return "/".join(split_node_id(self.node))


class WorldPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Durations are virtual seconds. Invalid: what cannot be."""

    inventory: Inventory = Inventory()
    """Racks with their pdus, tors and blades. It is in the store when the replicas start."""
    blades: tuple[BladePlan, ...] = ()
    """Further blades, in racks that the inventory does not have: nothing is known of their cables, so they always have
    power and network."""
    records: dict[str, bytes] = {}
    """Further records that are in the store when the replicas start, by key."""
    replicas: int = 2
    node_ttl: float = NODE_TTL
    fencing_time: float = FENCING_TIME
    leadership_ttl: float = LEADERSHIP_TTL
    lock_ttl: float = LOCK_TTL
    latency: float = 0.0
    """Of the network between processes and the store, each way, at most; 0: none, which is far cheaper."""
    labs: bool = False
    """Replicas show labs at a door in memory, and take requests from there."""
    catalogue: LabCatalogue | None = None
    """Which labs there are; None: any, of the default kind."""
    agents: Literal["real", "light"] = "real"
    """Light ones are a stand-in for thousands of blades: they do what they are told, and know no handing over."""
    boots: int = 2
    """Machines that a blade makes or starts at once."""
    make_time: float = 0.0
    """Seconds that making a machine takes."""
    boot_time: float = 0.0
    """Seconds that starting one takes."""
    stop_grace: float = 30.0
    power: bool = False
    """Pdus answer the control plane: a silent node is switched off there, and known to be off."""
    power_grace: float = POWER_GRACE
    brake_share: float = SHARE
    """More than this share of the nodes that become unreachable together are not fenced."""
    brake_window: float = WINDOW
    fence_every: float = FENCE_EVERY
    burn_in: float = BURN_IN
    """Seconds without a fault after which hardware in burn-in is operational."""
    retention: float = RETENTION
    """Seconds for which retained machines are kept."""
    hands_over: bool = True
    """Blades hand machines to each other as they run."""
    slices: bool = False
    """Agents run slices, and replicas deploy them."""
    load_time: float = 0.5
    """Seconds that loading a slice takes, at most; half of that at least."""
    start_time: float = 0.5
    """Seconds that activating one takes, at most."""
    restart: float = 0.3
    """Seconds after which a supervisor starts a process that ended."""
    traces: bool = True
    """Decisions leave traces in the store."""
    log: bool = True
    """What happens in the store is written down."""

    def __post_init__(self) -> None:
        if not 1 <= self.replicas <= 9:
            raise Invalid(f"replicas {self.replicas}: must be from 1 to 9")
        racks = {fold(full.rack.name) for full in self.inventory.racks}
        for blade in self.blades:
            if blade.rack in racks:
                raise Invalid(f"blade {blade.node}: its rack is in the inventory; put it there, too")


def blade_plans(inventory: Inventory) -> Iterator[BladePlan]:
    """The blades of an inventory. Where it does not say how much a blade has, the agent says what `SMALL` has."""
    for node, full, blade in inventory.nodes():
        said, rack = blade.capacity, fold(full.rack.name)
        yield BladePlan(
            node=node,
            capacity=Capacity(
                cpus=said.cpus or SMALL.cpus,
                memory_mib=said.memory_mib or SMALL.memory_mib,
                disk_gib=said.disk_gib or SMALL.disk_gib,
                network_mbps=said.network_mbps or SMALL.network_mbps,
            ),
            labels=blade.labels,
            pdus=tuple(f"{rack}/{fold(pdu.name)}" for pdu, _ in full.feeds(blade.name)),
            tors=tuple(f"{rack}/{fold(tor.name)}" for tor, _ in full.links(blade.name)),
        )
