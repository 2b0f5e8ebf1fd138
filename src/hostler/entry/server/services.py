"""The services that the server calls. `engine.control_plane` builds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from hostler.engine.access.rate_limits import BudgetConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from hostler.engine.control_plane import ControlPlane
    from hostler.engine.decision_history import TraceService
    from hostler.engine.deployments.service import BlueprintService
    from hostler.engine.inventory.service import InventoryService
    from hostler.engine.invocation.metrics_collector import CallWatch
    from hostler.engine.invocation.service import InvokeService
    from hostler.engine.labs.service import LabService
    from hostler.engine.nodes import NodeService
    from hostler.engine.overview import OverviewService
    from hostler.engine.quotas import QuotaService
    from hostler.engine.retained import RetainedService
    from hostler.engine.tickets import PeerTickets, Tickets
    from hostler.engine.users import UserService
    from hostler.engine.view import View
    from hostler.engine.vms import VmService
    from hostler.engine.workloads.service import WorkloadService
    from hostler.kit.clock import Clock
    from hostler.ports.audit_files import AuditFiles
    from hostler.ports.machines import Peers
    from hostler.ports.slices import Artifacts
    from hostler.ports.store import Store
    from hostler.sim.simulation import Simulation


def _never() -> bool:
    return False


def _nothing() -> Mapping[str, float]:
    return {}


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that handlers use. The creator opens and closes it; it outlives the server."""

    store: Store
    view: View
    vms: VmService
    retained: RetainedService
    labs: LabService
    workloads: WorkloadService
    blueprints: BlueprintService
    nodes: NodeService
    inventory: InventoryService
    quotas: QuotaService
    users: UserService
    tickets: Tickets
    traces: TraceService
    overview: OverviewService
    peers: Peers
    """Channels to the machines of every node."""
    artifacts: Artifacts
    """All published artifacts, wherever their files are."""
    own_artifacts: Artifacts | None = None
    """Artifacts whose files are on this host; None: all of `artifacts`."""
    peer_tickets: PeerTickets | None = None
    """Tickets of other processes of the control plane; None: such tickets are not accepted."""
    clock: Clock
    audit_files: AuditFiles | None = None
    """Entries of the audit log that are no longer in the store; None: there are no files."""
    stopping: Callable[[], bool] = _never
    """Whether this process was asked to end, and serves only until load balancers have noticed."""
    leads: Callable[[], bool] = _never
    """Whether this process leads now."""
    counters: Callable[[], Mapping[str, float]] = _nothing
    """Counters of controllers and agents of this process, for `/metrics`."""
    calls: InvokeService | None = None
    """Calls of slices; None: this process makes none."""
    watch: CallWatch | None = None
    """Measurements of these calls; None: this process makes no calls."""
    sim: Simulation | None = None
    """The simulated world, if this is the server of a simulation."""

    @classmethod
    def of(cls, plane: ControlPlane, *, peers: Peers, **more: Any) -> Services:
        """Return the services of a control plane. `more`: the fields that describe this process."""
        return cls(
            store=plane.store,
            view=plane.view,
            vms=plane.vms,
            retained=plane.retained,
            labs=plane.labs,
            workloads=plane.workloads,
            blueprints=plane.blueprints,
            nodes=plane.nodes,
            inventory=plane.inventory,
            quotas=plane.quotas,
            users=plane.users,
            tickets=plane.tickets,
            traces=plane.traces,
            overview=plane.overview,
            artifacts=plane.ports.artifacts,
            audit_files=plane.ports.audit_files,
            clock=plane.env.clock,
            peers=peers,
            **more,
        )

    def was_read(self) -> bool:
        """Return whether every cache was read from the store at least once."""
        return all(mirror.revision for mirror in self.view.mirrors.values())


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of the server."""

    max_body: int = 1024 * 1024
    """Largest request body in bytes."""
    body_within: float = 30.0
    """Seconds for a body to arrive."""
    heartbeat: float = 15.0
    """Seconds between two keepalives on an event stream."""
    max_streams: int = 1000
    """Most concurrent event streams, consoles and SSH connections."""
    history: int = 10_000
    """Events kept in memory for streams; a stream that is further behind reads the store."""
    open_metrics: bool | None = False
    """Whether `/metrics` needs no token: always, never, or (None) for clients on this host.

    A QEMU guest with the network `user` connects from this host, if its agent runs here and is not root.
    """
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks of proxies whose headers are trusted (`entry.server.proxy`)."""
    lab_key: Path | None = None
    """Path of the private key with which terminals log in to labs; None: there are no terminals."""
    max_terminals: int = 1000
    """Most lab terminals at the same time, including disconnected ones within their grace period."""
    terminal_grace: float = 300.0
    """Seconds for which the shell of a terminal waits for a disconnected user."""
    site: Path | None = None
    """Folder of the web page's files; None: those installed with Hostler."""
    budget: BudgetConfig = BudgetConfig()
    """Request budgets of accounts, and of addresses without an account."""
    log_reads: bool = False
    """Whether each successful read is logged too."""
