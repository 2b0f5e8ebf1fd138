"""The composition root: the one place that builds caches, services, controllers and agents.

    process                      store                clock, ids      ports
    server, up, replica          sqlite, file, etcd   of the system   drivers               entry/control_plane.py
    simulator                    a link with faults   virtual         simulated hardware    sim/world
    tests of crashes and races   a link with faults   virtual         simulated machines    tests/sim/plane.py
    tests of the API             any                  of the system   stand-ins             tests/api_server.py

All of them call the same constructors. They differ in the store, the environment, the ports, and the configuration. A
fault enters by replacing one of these. This module takes no decisions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from hostler.engine.agent.agent import Agent
from hostler.engine.agent.config import NodeEnv
from hostler.engine.controllers.brake import FENCE_EVERY, SHARE, WINDOW, Brake
from hostler.engine.controllers.garbage_collection import KEPT, MOST, Compaction
from hostler.engine.controllers.janitor import AUDIT_KEPT, Janitor, RetentionLimits
from hostler.engine.controllers.machines import MachineController
from hostler.engine.controllers.node_decision import POWER_GRACE
from hostler.engine.controllers.nodes import NodeController
from hostler.engine.controllers.retention import RETENTION
from hostler.engine.decision_history import TraceService
from hostler.engine.decision_recorder import Tracer
from hostler.engine.deployments.call_metrics import NOTHING, Measured
from hostler.engine.deployments.controller import DeploymentController
from hostler.engine.deployments.service import BlueprintService
from hostler.engine.deployments.state_machine import Limits
from hostler.engine.idempotent_writer import Writer
from hostler.engine.inventory.export import read_document
from hostler.engine.inventory.flow_controller import BURN_IN, FlowController
from hostler.engine.inventory.service import InventoryService
from hostler.engine.invocation.metrics_collector import Collector
from hostler.engine.labs.controller import LabController
from hostler.engine.labs.pool import LabPool
from hostler.engine.labs.projector import LabProjector
from hostler.engine.labs.queue_consumer import Rules
from hostler.engine.labs.service import LabService
from hostler.engine.labs.worker import LabWorker
from hostler.engine.nodes import NodeService
from hostler.engine.overview import OverviewService
from hostler.engine.quotas import QuotaService, quota_release
from hostler.engine.retained import RetainedService
from hostler.engine.runtime.env import ControllerEnv
from hostler.engine.service import Service
from hostler.engine.tickets import Tickets
from hostler.engine.users import UserService
from hostler.engine.view import View
from hostler.engine.vms import LOCK_TTL, VmService
from hostler.engine.workloads.controller import WorkloadController
from hostler.engine.workloads.service import WorkloadService
from hostler.keys.namespace import maintained_store
from hostler.model.lab import LabCatalogue

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hostler.engine.agent.config import AgentConfig
    from hostler.engine.cluster_id import Memory
    from hostler.engine.inventory.service import Reader
    from hostler.engine.runtime.env import Env
    from hostler.keys.cache import Cache
    from hostler.model.lab import LabUser
    from hostler.ports.audit_files import AuditFiles
    from hostler.ports.calls import Questions
    from hostler.ports.hasher import Hasher
    from hostler.ports.inbox import Inbox, LabRecords, QueueName
    from hostler.ports.machines import Machines, Peers
    from hostler.ports.power import Power
    from hostler.ports.slices import Artifacts, Slices
    from hostler.ports.store import Store


class MeteredService(Service, Protocol):
    """A service with counters, such as every controller."""

    @property
    def counters(self) -> Mapping[str, float]:
        """Return the counters by name."""


@dataclass(frozen=True, kw_only=True)
class ControlPlaneConfig:
    """Configuration of a control plane. Durations are seconds."""

    write_every: float | None = None
    """Seconds between two write probes; None: there are none."""
    lock_ttl: float = LOCK_TTL
    retention: float = RETENTION
    """How long retained machines are kept."""
    traces_kept: float = KEPT
    """How long decisions are kept; 0: none are recorded."""
    most_traces: int = MOST
    audit_kept: float = AUDIT_KEPT
    most_audit: int = MOST
    brake_share: float = SHARE
    brake_window: float = WINDOW
    fence_every: float = FENCE_EVERY
    power_grace: float = POWER_GRACE
    burn_in: float = BURN_IN
    store_history: float = 0.0
    """Age from which the leader compacts the history of the store; 0: never."""
    store_revisions: int = 0
    """Most revisions of that history."""
    catalogue: LabCatalogue | None = None
    """The lab catalogue of this process; None: it has none of its own."""
    catalogue_first: bool = False
    """Whether that catalogue takes precedence over the one in the store."""
    lab_switch: bool = False
    """Whether a request for another lab replaces the user's lab."""
    lab_limits: Mapping[QueueName, float] = field(default_factory=dict)
    """By queue: the shortest time between two requests of one user that are processed."""
    slices: bool = True
    """Whether blueprints are deployed."""
    slice_limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, kw_only=True)
class Ports:
    """What the services of a process reach besides the store. A default is an empty one."""

    artifacts: Artifacts
    hasher: Hasher | None = None
    """Hashes passwords; None: there are no accounts, and `users` must not be used."""
    audit_files: AuditFiles | None = None
    """Entries of the audit log that are no longer in the store; None: there are no files."""
    read_inventory: Reader = read_document
    threads: bool = True
    """Whether inventory files are read in a thread. In virtual time there are none."""


@dataclass(frozen=True, kw_only=True)
class LeaderPorts:
    """What the controllers of a leader reach besides the store. A default is an empty one."""

    power: Power | None = None
    """The power switches of nodes; None: unreachable nodes are not powered off."""
    lab_records: LabRecords | None = None
    """Where lab records are published; None: nowhere."""
    lab_keys: Sequence[str] = ()
    """Public keys that lab machines accept."""
    routers: Questions | None = None
    """Asks the routers of slices for their measurements; None: `measured` has them."""
    measured: Callable[[str], Measured] = lambda _: NOTHING


@dataclass(frozen=True, kw_only=True)
class NodePorts:
    """What the agent of a node reaches besides the store."""

    machines: Machines
    peers: Peers | None = None
    """Connections to other nodes; None: no machine of this node is migrated."""
    slices: Slices | None = None
    """The slice runtime; None: slices that are assigned to this node are ignored."""
    memory: Memory | None = None
    """Where the agent keeps which control plane its node belongs to; None: nowhere."""


@dataclass(frozen=True)
class LabCaches:
    """The caches that a lab worker needs."""

    labs: Cache[LabUser]
    catalogues: Cache[LabCatalogue]

    def catalogue(self, config: ControlPlaneConfig) -> LabCatalogue:
        """Return the catalogue in use.

        It is the stored one, unless there is none or that of this process takes precedence.
        """
        stored = None if config.catalogue_first else self.catalogues.get(name="default")
        return config.catalogue or LabCatalogue() if stored is None else stored.value


class ControlPlane:
    """The caches, services and controllers of one process. A service is built when it is first used.

    The caches are current while `view.run()` runs.
    """

    def __init__(self, store: Store, env: Env, ports: Ports, config: ControlPlaneConfig) -> None:
        self.store, self.env, self.ports, self.config = store, env, ports, config
        self.holder = ""
        """The holder id of this process's candidacy for leadership, set by the process; locks of machines name it."""
        self.view = View(store, clock=env.clock, rng=env.rng, write_every=config.write_every)
        self._lab_caches = LabCaches(self.view.labs, self.view.catalogues)
        self.writer = Writer(store, clock=env.clock, new_id=env.new_id, healthy=self.view.healthy, rng=env.rng)

    # Services

    @cached_property
    def vms(self) -> VmService:
        lock_ttl = self.config.lock_ttl
        return VmService(*(self.store, self.writer, self.view, self.env), lock_ttl=lock_ttl, holder=lambda: self.holder)

    @cached_property
    def retained(self) -> RetainedService:
        retention = self.config.retention
        return RetainedService(self.store, self.writer, self.view, self.vms, self.env, retention=retention)

    @cached_property
    def labs(self) -> LabService:
        switch = self.config.lab_switch
        return LabService(*(self.store, self.writer, self.view, self.env), catalogue=self.catalogue, switch=switch)

    @cached_property
    def workloads(self) -> WorkloadService:
        return WorkloadService(self.store, self.writer, self.view, self.env)

    @cached_property
    def blueprints(self) -> BlueprintService:
        return BlueprintService(self.store, self.writer, self.view, self.ports.artifacts, self.env)

    @cached_property
    def nodes(self) -> NodeService:
        return NodeService(self.store, self.writer, self.view, clock=self.env.clock)

    @cached_property
    def inventory(self) -> InventoryService:
        ports = self.ports
        return InventoryService(self.store, self.writer, self.view, read=ports.read_inventory, aside=ports.threads)

    @cached_property
    def quotas(self) -> QuotaService:
        return QuotaService(self.store, self.writer)

    @cached_property
    def users(self) -> UserService:
        if self.ports.hasher is None:
            raise RuntimeError("control plane: accounts need a password hasher")
        return UserService(self.store, self.writer, self.view, self.env, self.ports.hasher)

    @cached_property
    def tickets(self) -> Tickets:
        return Tickets(self.store, self.writer, clock=self.env.clock, secret=self.env.new_secret)

    @cached_property
    def traces(self) -> TraceService:
        return TraceService(self.store, self.view, clock=self.env.clock, files=self.ports.audit_files)

    @cached_property
    def overview(self) -> OverviewService:
        return OverviewService(self.store, self.view, self.blueprints, clock=self.env.clock)

    def catalogue(self) -> LabCatalogue:
        """Return the lab catalogue in use."""
        return self._lab_caches.catalogue(self.config)

    def lab_worker(self, inbox: Inbox, env: Env, source: str) -> LabWorker:
        """Return a worker that takes lab requests from queues, and logs to `env`. `source` names it in audit lines."""
        return build_lab_worker(self.store, env, inbox, self._lab_caches, config=self.config, source=source)

    # Controllers

    def controllers(self, ports: LeaderPorts) -> Sequence[MeteredService]:
        """Return new controllers for one leadership, in the order in which they start.

        No state of an earlier leadership is reused.
        """
        brake = self.brake()
        collector = None if ports.routers is None else self.collector(ports.routers)
        measured = ports.measured if collector is None else collector.metrics_of
        return (
            *(() if collector is None else (collector,)),
            brake,
            self.machine_controller(brake),
            self.node_controller(brake, ports.power),
            self.flow_controller(),
            self.workload_controller(),
            self.janitor(),
            *self.compaction(),
            *self.lab_controllers(ports),
            *((self.deployment_controller(measured),) if self.config.slices else ()),
        )

    def collector(self, routers: Questions) -> Collector:
        """Return the collector of the measurements of routers."""
        return Collector(self.view, routers, clock=self.env.clock, rng=self.env.rng)

    def brake(self) -> Brake:
        """Return the brake on fencing."""
        config, env = self.config, self.env
        return Brake(
            self._controller_env("brake", tell=env.warn),
            self.view,
            share=config.brake_share,
            window=config.brake_window,
            fence_every=config.fence_every,
        )

    def machine_controller(self, brake: Brake | None) -> MachineController:
        """Return the controller that places machines."""
        return MachineController(
            self._controller_env("machines"),
            self.view,
            brake=brake,
            release=quota_release,
        )

    def node_controller(self, brake: Brake | None, power: Power | None) -> NodeController:
        """Return the controller of nodes."""
        return NodeController(
            self._controller_env("nodes"),
            self.view,
            brake=brake,
            power=power,
            power_grace=self.config.power_grace,
        )

    def flow_controller(self) -> FlowController:
        """Return the controller of hardware in burn-in or retirement."""
        return FlowController(
            self._controller_env("hardware"),
            self.view,
            burn_in=self.config.burn_in,
        )

    def workload_controller(self) -> WorkloadController:
        """Return the controller of workloads."""
        return WorkloadController(self._controller_env("workloads"), self.view)

    def janitor(self) -> Janitor:
        """Return the controller that deletes what is too old."""
        config = self.config
        return Janitor(
            self._controller_env("janitor"),
            self.view,
            limits=RetentionLimits(
                audit_kept=config.audit_kept,
                traces_kept=config.traces_kept,
                most_audit=config.most_audit,
                most_traces=config.most_traces,
                machines_kept=config.retention,
            ),
            files=self.ports.audit_files,
        )

    def compaction(self) -> Sequence[Compaction]:
        """Return the compaction of the store's history; empty if the leader must not."""
        config, kept = self.config, maintained_store(self.store)
        if kept is None or not config.store_history:
            return ()
        age, revisions = config.store_history, config.store_revisions
        return (Compaction(self.store, kept, clock=self.env.clock, age=age, revisions=revisions, tell=self.env.tell),)

    def lab_controllers(self, ports: LeaderPorts) -> Sequence[MeteredService]:
        """Return the controllers of labs."""
        env, labs_env = self.env, self._controller_env("labs")
        pool = LabPool(
            labs_env,
            self.view,
            keys=ports.lab_keys,
        )
        labs = LabController(
            labs_env,
            self.view,
            catalogue=self.config.catalogue,
            keys=ports.lab_keys,
            pool=pool,
        )
        if ports.lab_records is None:
            return (labs,)
        return (labs, LabProjector(ports.lab_records, self.view, clock=env.clock, rng=env.rng, tell=env.tell))

    def deployment_controller(self, measured: Callable[[str], Measured]) -> DeploymentController:
        """Return the controller that deploys blueprints."""
        return DeploymentController(
            self._controller_env("deployments"),
            self.view,
            measured=measured,
            limits=self.config.slice_limits,
        )

    def _controller_env(self, actor: str, tell: Callable[[str], None] | None = None) -> ControllerEnv:
        """Return what a service of the leader works with."""
        env = self.env
        return ControllerEnv(
            store=self.store,
            clock=env.clock,
            rng=env.rng,
            new_id=env.new_id,
            tracer=self._tracer(actor),
            tell=tell or env.tell,
        )

    def _tracer(self, actor: str) -> Tracer:
        """Return the recorder of a controller's decisions."""
        return Tracer(self.env.clock, self.env.new_id, actor, kept=self.config.traces_kept > 0)


def build_agent(
    store: Store,
    env: Env,
    ports: NodePorts,
    config: AgentConfig,
    *,
    limits: Limits | None = None,
    accept_cluster: bool = False,
) -> Agent:
    """Return the agent of a node. `limits`: of the steps of its slices. `accept_cluster`: as `accept` in `Session`."""
    return Agent(
        NodeEnv(store=store, machines=ports.machines, config=config, clock=env.clock, rng=env.rng, new_id=env.new_id),
        peers=ports.peers,
        slices=ports.slices,
        limits=limits,
        memory=ports.memory,
        accept=accept_cluster,
    )


def build_user_service(store: Store, env: Env, hasher: Hasher) -> UserService:
    """Return the service of accounts for a command that works directly on the store, without current caches."""
    writer = Writer(store, clock=env.clock, new_id=env.new_id, rng=env.rng)
    return UserService(store, writer, View(store, clock=env.clock, rng=env.rng), env, hasher)


def build_lab_worker(
    store: Store, env: Env, inbox: Inbox, caches: LabCaches, *, config: ControlPlaneConfig, source: str
) -> LabWorker:
    """Return a worker that takes lab requests from queues. `source` names it in the audit log."""
    rules = Rules(lambda: caches.catalogue(config), config.lab_switch, dict(config.lab_limits))
    return LabWorker(store, inbox, caches.labs, env, rules, source=source)
