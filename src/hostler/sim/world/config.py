"""Configuration of a world, and the constructors of everything that runs in it: those of production."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

from hostler.drivers.ttl.store import StoreTtlStorage
from hostler.engine.agent.config import FENCING_TIME, NODE_TTL
from hostler.engine.control_plane import ControlPlane, ControlPlaneConfig, build_agent
from hostler.engine.controllers.brake import FENCE_EVERY, SHARE, WINDOW
from hostler.engine.controllers.garbage_collection import KEPT as TRACES_KEPT
from hostler.engine.controllers.node_decision import POWER_GRACE
from hostler.engine.controllers.retention import RETENTION
from hostler.engine.inventory.flow_controller import BURN_IN
from hostler.engine.inventory.inventory_file import Inventory
from hostler.engine.replica import LEADERSHIP_TTL, Replica
from hostler.engine.transfer.restore import restore
from hostler.errors import Invalid
from hostler.model.inventory import Capacity
from hostler.model.lab import LabCatalogue  # noqa: TC001 - msgspec reads annotations at run time
from hostler.model.name import fold
from hostler.model.node import split_node_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from hostler.engine.agent.agent import Agent
    from hostler.engine.agent.config import AgentConfig
    from hostler.engine.control_plane import NodePorts, Ports
    from hostler.engine.runtime.env import Env
    from hostler.engine.service import Service
    from hostler.engine.transfer.restore import Restored
    from hostler.ports.store import Store
    from hostler.ports.ttl import TtlStorage


SMALL = Capacity(cpus=16, memory_mib=64 * 1024, disk_gib=1024, network_mbps=10_000)
LOCK_TTL = 30.0


class BladeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One blade, as its agent is configured."""

    node: str
    """`r1-b3`."""
    capacity: Capacity = SMALL
    labels: dict[str, str] = {}
    pdus: tuple[str, ...] = ()
    """The pdus that feed the blade, by their cluster-wide names: `r1/pdu1`."""
    tors: tuple[str, ...] = ()
    images: tuple[str, ...] | None = None
    """Images that machines can be made from on this blade; None: any."""
    fences: bool = True
    """Whether fenced machines stop by themselves on this blade."""
    moves: bool = True
    """Whether its machines can be migrated while they run."""

    @property
    def rack(self) -> str:
        return split_node_id(self.node)[0]

    @property
    def component(self) -> str:
        """`r1/b3`."""
        return "/".join(split_node_id(self.node))


class WorldConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration of a world. Durations are virtual seconds. Invalid: an impossible configuration."""

    inventory: Inventory = Inventory()
    """Racks with their pdus, tors and blades. It is in the store when the replicas start."""
    blades: tuple[BladeConfig, ...] = ()
    """More blades, in racks that the inventory does not contain. Their cables are unknown, so they always have power
    and network."""
    records: dict[str, bytes] = {}
    """More records that are in the store when the replicas start, by key."""
    replicas: int = 2
    node_ttl: float = NODE_TTL
    fencing_time: float = FENCING_TIME
    leadership_ttl: float = LEADERSHIP_TTL
    lock_ttl: float = LOCK_TTL
    latency: float = 0.0
    """Largest latency of the network between processes and the store, each way; 0: none, which is far cheaper."""
    labs: bool = False
    """Whether replicas publish labs to an in-memory projection and take requests from in-memory queues."""
    catalogue: LabCatalogue | None = None
    """The available labs; None: any lab, of the default kind."""
    agents: Literal["real", "light"] = "real"
    """`light` agents stand in for thousands of blades: they execute commands, but do not migrate machines."""
    boots: int = 2
    """Machines that a blade creates or starts at the same time."""
    make_time: float = 0.0
    """Seconds that creating a machine takes."""
    boot_time: float = 0.0
    """Seconds that starting a machine takes."""
    stop_grace: float = 30.0
    power: bool = False
    """Whether pdus answer the control plane: it switches off an unreachable node and then knows that the node is
    off."""
    power_grace: float = POWER_GRACE
    brake_share: float = SHARE
    """If more than this fraction of the nodes become unreachable together, none of them is fenced."""
    brake_window: float = WINDOW
    fence_every: float = FENCE_EVERY
    burn_in: float = BURN_IN
    """Seconds without a fault after which hardware in burn-in becomes operational."""
    retention: float = RETENTION
    """Seconds for which retained machines are kept."""
    hands_over: bool = True
    """Whether blades migrate running machines to each other."""
    slices: bool = False
    """Whether agents run slices, and replicas deploy them."""
    load_time: float = 0.5
    """Longest duration of loading a slice, in seconds; the shortest is half of it."""
    start_time: float = 0.5
    """Longest duration of activating a slice, in seconds."""
    restart: float = 0.3
    """Seconds after which a supervisor restarts a process that ended."""
    traces: bool = True
    """Whether decisions are recorded in the store."""
    log: bool = True
    """Whether changes in the store are logged."""

    def __post_init__(self) -> None:
        if not 1 <= self.replicas <= 9:
            raise Invalid(f"replicas {self.replicas}: must be from 1 to 9")
        racks = {fold(full.rack.name) for full in self.inventory.racks}
        for blade in self.blades:
            if blade.rack in racks:
                raise Invalid(f"blade {blade.node}: its rack is in the inventory; add the blade to the inventory")


def blade_plans(inventory: Inventory) -> Iterator[BladeConfig]:
    """Return the blades of an inventory. A capacity that the inventory does not give is taken from `SMALL`."""
    for node, full, blade in inventory.nodes():
        said, rack = blade.capacity, fold(full.rack.name)
        yield BladeConfig(
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


def config_of(plan: WorldConfig) -> ControlPlaneConfig:
    """Return the configuration of the control plane of a world."""
    return ControlPlaneConfig(
        lock_ttl=plan.lock_ttl,
        retention=plan.retention,
        traces_kept=TRACES_KEPT if plan.traces else 0.0,
        brake_share=plan.brake_share,
        brake_window=plan.brake_window,
        fence_every=plan.fence_every,
        power_grace=plan.power_grace,
        burn_in=plan.burn_in,
        catalogue=plan.catalogue,
        slices=plan.slices,
    )


@dataclass(frozen=True)
class Factories:
    """The constructor of each component."""

    plane: Callable[[Store, Env, Ports, ControlPlaneConfig], ControlPlane] = ControlPlane
    """The caches, services and controllers of a replica."""
    storage: Callable[[Store], TtlStorage] = StoreTtlStorage
    """The storage for elections."""
    replica: Callable[..., Replica] = Replica
    """Elections, and the start and stop order."""
    more: Sequence[Callable[[ControlPlane], Service]] = ()
    """Further controllers of a leader."""
    agent: Callable[[Store, Env, NodePorts, AgentConfig], Agent] = build_agent
    restore: Callable[..., Awaitable[Restored]] = restore
    """Fills an empty store from a backup."""
