"""Factories of everything that runs in a world: those of production. Tests replace one to introduce a defect."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hostler.drivers.ttl.store import StoreTtlStorage
from hostler.engine.agent.agent import Agent
from hostler.engine.controllers.brake import Brake
from hostler.engine.controllers.janitor import Janitor
from hostler.engine.controllers.machines import MachineController
from hostler.engine.controllers.nodes import NodeController
from hostler.engine.decision_recorder import Tracer
from hostler.engine.deployments.controller import DeploymentController
from hostler.engine.inventory.flow_controller import FlowController
from hostler.engine.labs.controller import LabController
from hostler.engine.labs.pool import LabPool
from hostler.engine.labs.projector import LabProjector
from hostler.engine.quotas import quota_release
from hostler.engine.replica import Replica
from hostler.engine.transfer.restore import restore
from hostler.engine.view import View
from hostler.engine.workloads.controller import WorkloadController
from hostler.sim.world.traffic import Counting, Traffic

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Sequence

    from hostler.engine.agent.config import AgentConfig
    from hostler.engine.service import Service
    from hostler.engine.transfer.restore import Restored
    from hostler.kit.clock import Clock
    from hostler.ports.inbox import LabRecords
    from hostler.ports.machines import Machines
    from hostler.ports.peers import Peers
    from hostler.ports.power import Power
    from hostler.ports.slices import Slices
    from hostler.ports.store import Store
    from hostler.ports.ttl import TtlStorage
    from hostler.sim.world.config import WorldConfig


@dataclass(frozen=True)
class Making:
    """What a factory needs to build a component of a process."""

    plan: WorldConfig
    store: Store
    """The store as the process reaches it."""
    clock: Clock
    rng: random.Random
    new_id: Callable[[], str]
    tell: Callable[[str], None]
    power: Power | None = None
    brake: Brake | None = None
    """The brake of one leadership."""
    board: LabRecords | None = None
    traffic: Traffic | None = None
    slices: Slices | None = None
    """The slices of an agent; None: it runs none."""

    def tracer(self, actor: str) -> Tracer:
        """Return the tracer with which a controller records its decisions."""
        return Tracer(self.clock, self.new_id, actor, kept=self.plan.traces)

    def tools(self, *names: str) -> dict[str, Any]:
        """Return these attributes by name, as keyword arguments for constructors."""
        return {name: getattr(self, name) for name in names}


def _view(making: Making) -> View:
    return View(making.store, clock=making.clock, rng=making.rng)


def _brake(making: Making, view: View) -> Brake:
    plan = making.plan
    return Brake(
        making.store,
        view,
        share=plan.brake_share,
        window=plan.brake_window,
        fence_every=plan.fence_every,
        tracer=making.tracer("brake"),
        **making.tools("clock", "rng", "tell"),
    )


def _machines(making: Making, view: View) -> Service:
    return MachineController(
        making.store,
        view,
        release=quota_release,
        tracer=making.tracer("machines"),
        **making.tools("clock", "rng", "tell", "brake"),
    )


def _nodes(making: Making, view: View) -> Service:
    return NodeController(
        making.store,
        view,
        power_grace=making.plan.power_grace,
        tracer=making.tracer("nodes"),
        **making.tools("clock", "rng", "tell", "power", "brake"),
    )


def _flows(making: Making, view: View) -> Service:
    return FlowController(
        making.store,
        view,
        burn_in=making.plan.burn_in,
        tracer=making.tracer("hardware"),
        **making.tools("clock", "rng", "tell"),
    )


def _janitor(making: Making, view: View) -> Service:
    return Janitor(
        making.store,
        view,
        retention=making.plan.retention,
        tracer=making.tracer("janitor"),
        **making.tools("clock", "rng", "new_id", "tell"),
    )


def _workloads(making: Making, view: View) -> Service:
    return WorkloadController(
        making.store, view, tracer=making.tracer("workloads"), **making.tools("clock", "rng", "new_id", "tell")
    )


def _labs(making: Making, view: View) -> Sequence[Service]:
    tools = making.tools("clock", "rng", "new_id", "tell")
    tools["tracer"] = making.tracer("labs")
    keys = ("ssh-ed25519 simulated",)
    pool = LabPool(making.store, view, keys=keys, **tools)
    labs = LabController(making.store, view, catalogue=making.plan.catalogue, keys=keys, pool=pool, **tools)
    if making.board is None:
        return (labs,)
    return (labs, LabProjector(making.board, view, **making.tools("clock", "rng", "tell")))


def _deployments(making: Making, view: View) -> Service:
    counting = Counting(making.traffic or Traffic(), view, making.clock)
    return DeploymentController(
        making.store,
        view,
        tracer=making.tracer("deployments"),
        measured=counting.measured,
        **making.tools("clock", "rng", "tell"),
    )


def _storage(store: Store) -> TtlStorage:
    return StoreTtlStorage(store)


def _agent(making: Making, machines: Machines, plan: AgentConfig, peers: Peers | None) -> Agent:
    return Agent(
        making.store, machines, plan, peers=peers, slices=making.slices, **making.tools("clock", "rng", "new_id")
    )


@dataclass
class Factories:
    """The factory of each component.

    The controllers of a leader are those of `hostler replica` (`brake`, `machines`, `nodes`, `flows`, `workloads`,
    `janitor`, `labs`, `deployments`), and `more`.
    """

    view: Callable[[Making], View] = _view
    """With its caches."""
    storage: Callable[[Store], TtlStorage] = _storage
    """The storage for elections."""
    replica: Callable[..., Replica] = Replica
    """Elections, and the start and stop order."""
    brake: Callable[[Making, View], Brake] = _brake
    machines: Callable[[Making, View], Service] = _machines
    """With its placement."""
    nodes: Callable[[Making, View], Service] = _nodes
    flows: Callable[[Making, View], Service] = _flows
    """For hardware in burn-in or retirement."""
    janitor: Callable[[Making, View], Service] = _janitor
    labs: Callable[[Making, View], Sequence[Service]] = _labs
    workloads: Callable[[Making, View], Service] = _workloads
    deployments: Callable[[Making, View], Service] = _deployments
    """For blueprints and slices; only if the plan has slices."""
    more: Sequence[Callable[[Making, View], Service]] = field(default_factory=tuple)
    agent: Callable[[Making, Machines, AgentConfig, Peers | None], Agent] = _agent
    restore: Callable[..., Awaitable[Restored]] = restore
    """Fills an empty store from a backup."""

    def controllers(self, making: Making, view: View) -> Sequence[Service]:
        """Return new controllers for one leadership."""
        brake = self.brake(making, view)
        making = replace(making, brake=brake)
        return (
            brake,
            self.machines(making, view),
            self.nodes(making, view),
            self.flows(making, view),
            self.workloads(making, view),
            self.janitor(making, view),
            *self.labs(making, view),
            *((self.deployments(making, view),) if making.plan.slices else ()),
            *(make(making, view) for make in self.more),
        )
