"""What the server stands on. `entry.up` and `entry.replica` put it together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.engine.access.budget import BudgetPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from hostler.engine.decision_history import TraceService
    from hostler.engine.deployments.service import BlueprintService
    from hostler.engine.inventory.service import InventoryService
    from hostler.engine.invocation.metrics_feed import CallWatch
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
    from hostler.ports.artifacts import Artifacts
    from hostler.ports.audit_files import AuditFiles
    from hostler.ports.peers import Peers
    from hostler.ports.store import Store
    from hostler.sim.simulation import Simulation


def _never() -> bool:
    return False


def _nothing() -> Mapping[str, float]:
    return {}


class Services(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that handlers ask. All of it is opened and closed by whoever made it, and outlives the server."""

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
    """The way to the machines of every node."""
    artifacts: Artifacts
    """All that were published, wherever their files are."""
    own_artifacts: Artifacts | None = None
    """Those whose files are on this machine; None: `artifacts` are."""
    peer_tickets: PeerTickets | None = None
    """By which other processes of the control plane are let in; None: they are not."""
    clock: Clock
    audit_files: AuditFiles | None = None
    """Lines of the audit log that are no longer in the store; None: there are no files."""
    stopping: Callable[[], bool] = _never
    """Whether this process was asked to end, and serves only until load balancers have noticed."""
    leads: Callable[[], bool] = _never
    """Whether this process leads now."""
    counters: Callable[[], Mapping[str, float]] = _nothing
    """What controllers and agents of this process count, for `/metrics`."""
    calls: InvokeService | None = None
    """The way to slices; None: this process has none."""
    watch: CallWatch | None = None
    """What was measured of them; None as well."""
    sim: Simulation | None = None
    """The world that this is the server of, if it is one of a simulation."""

    def was_read(self) -> bool:
        """Whether everything in memory was read from the store at least once."""
        return all(mirror.revision for mirror in self.view.mirrors.values())


class ServerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How the server behaves."""

    max_body: int = 1024 * 1024
    """Bytes of one request's body."""
    body_within: float = 30.0
    """Seconds in which a body must have come."""
    heartbeat: float = 15.0
    """Seconds between two signs of life on an event stream."""
    max_streams: int = 1000
    """Event streams, consoles and SSH connections at once."""
    history: int = 10_000
    """Events that are kept in memory for streams; who is further behind reads the store."""
    open_metrics: bool | None = False
    """Whether `/metrics` answers without a token: always, never, or (None) to callers on this very machine.

    A guest of QEMU whose network is `user` comes from this very machine, if its agent runs there and is not root.
    """
    trusted_proxies: tuple[str, ...] = ()
    """Addresses and networks of proxies that are believed who asks, and whether by https (`entry.server.proxy`)."""
    lab_key: Path | None = None
    """Where the private key is with which terminals log into labs; None: there are no terminals."""
    max_terminals: int = 1000
    """Terminals of labs at once, those among them whose users may still come back."""
    terminal_grace: float = 300.0
    """Seconds for which a terminal's shell waits for a user whose connection has ended."""
    site: Path | None = None
    """Where the files of the page are; None: those that came with Hostler."""
    budget: BudgetPlan = BudgetPlan()
    """How many requests an account may make, and an address without one."""
    log_reads: bool = False
    """Whether each successful read is logged too."""
