"""A replica: the control plane of `hostler replica`, on the ports of a world.

The artifact repository contains every artifact, and none has a file. No calls are made in a world, so a scenario sets
the rates of calls that routers would have measured.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import msgspec

from hostler.drivers.inbox.memory import MemoryInbox, MemoryLabRecords
from hostler.engine.control_plane import LeaderPorts, Ports
from hostler.engine.deployments.call_metrics import NOTHING, Measured
from hostler.engine.replica import ReplicaConfig
from hostler.engine.runtime.env import say_nothing
from hostler.engine.self_fencing import GRACE, overdue_at
from hostler.errors import Refused, Unavailable
from hostler.model.deployment import Artifact, base_of
from hostler.ports.slices import ArtifactInfo
from hostler.sim.world.config import config_of
from hostler.sim.world.host import Host

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from hostler.engine.control_plane import ControlPlane
    from hostler.engine.decision_history import TraceService
    from hostler.engine.deployments.service import BlueprintService
    from hostler.engine.elections import Leadership
    from hostler.engine.inventory.service import InventoryService
    from hostler.engine.labs.service import LabService
    from hostler.engine.nodes import NodeService
    from hostler.engine.quotas import QuotaService
    from hostler.engine.request import Request
    from hostler.engine.service import Standing
    from hostler.engine.view import View
    from hostler.engine.vms import VmService
    from hostler.engine.workloads.service import WorkloadService
    from hostler.kit.clock import Clock
    from hostler.ports.inbox import LabRecords
    from hostler.sim.world.host import Life
    from hostler.sim.world.world import World


T = TypeVar("T")

ANSWER_WITHIN = 30.0
"""Seconds after which a client gives up on a replica and tries another."""


_SUM = "0" * 64


class EveryArtifact:
    """A repository that finds every artifact."""

    async def find(self, artifact: str) -> ArtifactInfo:
        name = Artifact.parse(artifact).name
        return ArtifactInfo(artifact=artifact, file=f"{name}.py", sha256=_SUM, size=0, module=name)

    async def list(self, base: str = "") -> Sequence[ArtifactInfo]:  # noqa: ARG002 - there is no end of them
        return ()

    async def fetch(self, artifact: str, to: Path) -> ArtifactInfo:
        raise Refused(f"{artifact}: cannot be fetched to {to}; in a simulation artifacts have no files")

    async def publish(self, info: ArtifactInfo, source: Path) -> ArtifactInfo:
        raise Refused(f"{info.artifact}: {source} cannot be published; in a simulation artifacts have no files")


PORTS = Ports(artifacts=EveryArtifact(), threads=False)
"""What services reach besides the store: a world has every artifact, and no accounts."""


@dataclass(frozen=True)
class ReplicaServices:
    """The services of one replica, and the request that they are called with."""

    plane: ControlPlane
    request: Request
    """With the Idempotency-Key that all attempts of this request share."""

    @property
    def view(self) -> View:
        return self.plane.view

    @property
    def vms(self) -> VmService:
        return self.plane.vms

    @property
    def nodes(self) -> NodeService:
        return self.plane.nodes

    @property
    def inventory(self) -> InventoryService:
        return self.plane.inventory

    @property
    def workloads(self) -> WorkloadService:
        return self.plane.workloads

    @property
    def blueprints(self) -> BlueprintService:
        return self.plane.blueprints

    @property
    def labs(self) -> LabService:
        return self.plane.labs

    @property
    def quotas(self) -> QuotaService:
        return self.plane.quotas

    @property
    def traces(self) -> TraceService:
        return self.plane.traces


class ReplicaHost(Host):
    """One replica. It ends when it loses its leadership, and a supervisor restarts it."""

    kind = "replica"

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name, name)
        self.plane: ControlPlane | None = None
        """None: the replica does not serve."""
        self.leads = False
        """Whether the replica believes that it leads."""
        self.fence = 0
        """The fence of its last leadership."""

    def kill(self, cause: str = "") -> None:
        self._gone()
        super().kill(cause)

    def ended(self, life: Life, error: Exception | None) -> None:
        self._gone()
        super().ended(life, error)

    def _gone(self) -> None:
        self.plane, self.leads = None, False

    async def main(self, life: Life) -> None:
        world = self.world
        env = life.env(lambda text: world.log_line(self, text))
        async with AsyncExitStack() as stack:
            board = await stack.enter_async_context(MemoryLabRecords(world.lab_redis)) if world.plan.labs else None
            plane = world.parts.plane(life.wire, env, PORTS, config_of(world.plan))
            tasks = [asyncio.create_task(plane.view.run(), name=f"{self.name}: view")]
            stack.push_async_callback(_cancel_all, tasks)
            await plane.view.ready()
            plane.holder = life.new_id()  # until it stands for leadership
            self.plane = plane
            if world.plan.labs:
                tasks.append(asyncio.create_task(self._work(plane), name=f"{self.name}: labs"))
            tasks.append(asyncio.create_task(self._stand(life, plane, board), name=f"{self.name}: standing"))
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()

    async def _work(self, plane: ControlPlane) -> None:
        """Take lab requests from the queues."""
        env = replace(plane.env, tell=say_nothing, warn=say_nothing)
        async with MemoryInbox(self.world.lab_redis) as inbox:
            await plane.lab_worker(inbox, env, self.name).run()

    async def _stand(self, life: Life, plane: ControlPlane, board: LabRecords | None) -> None:
        """Run for leadership, lead, and return when it is lost."""
        world, parts = self.world, self.world.parts
        ports = LeaderPorts(
            power=world.power,
            lab_records=board,
            lab_keys=("ssh-ed25519 simulated",),
            measured=Counting(world.traffic, plane.view, life.clock).measured,
        )
        more = [make(plane) for make in parts.more]
        plane.holder = life.new_id()
        replica = parts.replica(
            ReplicaConfig(ip=self.name),
            parts.storage(life.wire),
            (),
            controllers=(*plane.controllers(ports), *more, Leading(self)),
            clock=life.clock,
            killer=HostKiller(life),
            holder=plane.holder,
            rng=life.rng,
        )
        try:
            problem = await replica.launch(world.plan.leadership_ttl, None)
            await problem.wait()
        finally:
            if not life.dead:
                await replica.shutdown()

    async def ask(self, do: Callable[[ReplicaServices], Awaitable[T]], request: Request) -> T:
        """Run a client's request on this replica. Unavailable: the replica is not serving, died, or did not answer."""
        plane, life = self.plane, self.life
        if plane is None or life is None or life.dead:
            raise Unavailable(f"{self.name}: not serving")
        return await life.call(lambda: do(ReplicaServices(plane, request)), within=ANSWER_WITHIN)


class Leading:
    """The last of the controllers: publishes which replica leads, for observers outside."""

    name = "leading"

    def __init__(self, host: ReplicaHost) -> None:
        self._host = host

    async def start(self, standing: Standing) -> None:
        self._host.leads, self._host.fence = True, standing.leadership.fence
        self._host.world.log.add("leader", self._host.name, f"leads with fence {self._host.fence}")

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def stop(self) -> None:
        if self._host.leads:
            self._host.leads = False
            self._host.world.log.add("leader", self._host.name, "no longer leads")


class HostKiller:
    """Kills the simulated process of a leader that did not stop in time, as a thread of a real process would."""

    def __init__(self, life: Life) -> None:
        self._life = life

    def guard(self, leadership: Leadership) -> None:
        asyncio.create_task(self._watch(leadership), name=f"{self._life.process}: killer")  # noqa: RUF006 - kept by the loop

    async def _watch(self, leadership: Leadership) -> None:
        clock = self._life.clock
        while not leadership.released:
            left = overdue_at(leadership) - clock.now()
            if left <= 0 and not self._life.dead:
                self._life.host.world.kill(self._life.host.name, cause="leadership lost")
                return
            await clock.sleep(max(0.001, min(left, leadership.ttl / GRACE / 4)))


async def _cancel_all(tasks: list[asyncio.Task[None]]) -> None:
    for task in reversed(tasks):
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """How often something is called, and how it answers."""

    per_second: float = 0.0
    errors: float = 0.0
    """The fraction of calls that fails."""
    p95_ms: float = 0.0
    in_flight: float = 0.0


class Traffic:
    """Call rates by artifact, or by `group:name` for every version without a rate of its own."""

    def __init__(self) -> None:
        self._rates: dict[str, Rate] = {}

    def set(self, artifact: str, rate: Rate) -> None:
        """Set the rate from now on."""
        self._rates[artifact] = rate

    def rate(self, artifact: str) -> Rate | None:
        """Return the present rate; None: not set."""
        found = self._rates.get(artifact)
        return found if found is not None else self._rates.get(base_of(artifact))


class Counting:
    """The counts of one leader, since it was first asked."""

    def __init__(self, traffic: Traffic, view: View, clock: Clock) -> None:
        self._traffic, self._view, self._clock = traffic, view, clock
        self._began: float | None = None

    def measured(self, artifact: str) -> Measured:
        """Return the counts of an artifact since the last change of its deployment."""
        now = self._clock.wall()
        if self._began is None:
            self._began = now
        rate = self._traffic.rate(artifact)
        if rate is None:
            return NOTHING
        entry = self._view.deployments.get(base=base_of(artifact))
        since = self._began if entry is None else max(self._began, entry.value.changed_at)
        calls = int(rate.per_second * max(0.0, now - since))
        return Measured(
            calls=calls,
            errors=int(calls * rate.errors),
            p95_ms=rate.p95_ms if calls else 0.0,
            in_flight=rate.in_flight,
            since=since,
        )
