"""A replica: view, services and controllers, as in `hostler replica`."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from hostler.drivers.inbox.memory import MemoryInbox, MemoryLabRecords
from hostler.engine.decision_history import TraceService
from hostler.engine.deployments.service import BlueprintService
from hostler.engine.idempotent_writer import Writer
from hostler.engine.inventory.service import InventoryService
from hostler.engine.labs.service import LabService
from hostler.engine.labs.worker import LabWorker
from hostler.engine.nodes import NodeService
from hostler.engine.quotas import QuotaService
from hostler.engine.replica import ReplicaConfig
from hostler.engine.self_fencing import GRACE, overdue_at
from hostler.engine.vms import VmService
from hostler.engine.workloads.service import WorkloadService
from hostler.errors import Unavailable
from hostler.model.lab import LabCatalogue
from hostler.sim.world.artifacts import EveryArtifact
from hostler.sim.world.factories import Making
from hostler.sim.world.host import Host

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hostler.engine.elections import Leadership
    from hostler.engine.request import Request
    from hostler.engine.service import Standing
    from hostler.engine.view import View
    from hostler.sim.world.host import Life
    from hostler.sim.world.world import World

T = TypeVar("T")

ANSWER_WITHIN = 30.0
"""Seconds after which a client gives up on a replica and tries another."""


@dataclass(frozen=True)
class ReplicaServices:
    """The services of one replica, and the request that they are called with."""

    request: Request
    """With the Idempotency-Key that all attempts of this request share."""
    view: View
    vms: VmService
    nodes: NodeService
    inventory: InventoryService
    quotas: QuotaService
    labs: LabService
    workloads: WorkloadService
    traces: TraceService
    blueprints: BlueprintService


class ReplicaHost(Host):
    """One replica. It ends when it loses its leadership, and a supervisor restarts it."""

    kind = "replica"

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name, name)
        self.doors: ReplicaServices | None = None
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
        self.doors, self.leads = None, False

    async def main(self, life: Life) -> None:
        async with AsyncExitStack() as stack:
            making = await self._making(life, stack)
            view = self.world.parts.view(making)
            tasks = [asyncio.create_task(view.run(), name=f"{self.name}: view")]
            stack.push_async_callback(_ended, tasks)
            await view.ready()
            self.doors = self._doors(life, view)
            if self.world.plan.labs:
                tasks.append(asyncio.create_task(self._work(life, view), name=f"{self.name}: labs"))
            tasks.append(asyncio.create_task(self._stand(life, making, view), name=f"{self.name}: standing"))
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()

    async def _making(self, life: Life, stack: AsyncExitStack) -> Making:
        world = self.world
        board = await stack.enter_async_context(MemoryLabRecords(world.door)) if world.plan.labs else None
        return Making(
            plan=world.plan,
            store=life.wire,
            clock=life.clock,
            rng=life.rng,
            new_id=life.new_id,
            tell=lambda text: world.told(self, text),
            power=world.power,
            board=board,
            traffic=world.traffic,
        )

    def _doors(self, life: Life, view: View) -> ReplicaServices:
        store, clock, rng, new_id = life.wire, life.clock, life.rng, life.new_id
        writer = Writer(store, clock=clock, new_id=new_id, healthy=view.healthy, rng=rng)
        return ReplicaServices(
            request=self.world.request,
            view=view,
            vms=VmService(
                *(store, writer, view), clock=clock, rng=rng, new_id=new_id, lock_ttl=self.world.plan.lock_ttl
            ),
            nodes=NodeService(store, writer, view, clock=clock),
            inventory=InventoryService(store, writer, view),
            quotas=QuotaService(store, writer),
            labs=LabService(store, writer, view, catalogue=self._catalogue(view), clock=clock, rng=rng),
            workloads=WorkloadService(store, writer, view, clock=clock, rng=rng),
            traces=TraceService(store, view, clock=clock),
            blueprints=BlueprintService(store, writer, view, EveryArtifact(), clock=clock, rng=rng),
        )

    def _catalogue(self, view: View) -> Callable[[], LabCatalogue]:
        otherwise = self.world.plan.catalogue or LabCatalogue()

        def catalogue() -> LabCatalogue:
            entry = view.catalogues.get(name="default")
            return otherwise if entry is None else entry.value

        return catalogue

    async def _work(self, life: Life, view: View) -> None:
        """Take lab requests from the queues."""
        async with MemoryInbox(self.world.door) as inbox:
            worker = LabWorker(
                *(life.wire, inbox, view.labs),
                catalogue=self._catalogue(view),
                clock=life.clock,
                rng=life.rng,
                new_id=life.new_id,
                source=self.name,
            )
            await worker.run()

    async def _stand(self, life: Life, making: Making, view: View) -> None:
        """Run for leadership, lead, and return when it is lost."""
        parts, plan = self.world.parts, self.world.plan
        replica = parts.replica(
            ReplicaConfig(ip=self.name),
            parts.storage(life.wire),
            (),
            controllers=(*parts.controllers(making, view), Leading(self)),
            clock=life.clock,
            killer=HostKiller(life),
            holder=life.new_id(),
            rng=life.rng,
        )
        try:
            problem = await replica.launch(plan.leadership_ttl, None)
            await problem.wait()
        finally:
            if not life.dead:
                await replica.shutdown()

    async def ask(self, do: Callable[[ReplicaServices], Awaitable[T]], request: Request) -> T:
        """Run a client's request on this replica. Unavailable: the replica is not serving, died, or did not answer."""
        doors, life = self.doors, self.life
        if doors is None or life is None or life.dead:
            raise Unavailable(f"{self.name}: not serving")
        mine = ReplicaServices(**{**doors.__dict__, "request": request})
        return await life.call(lambda: do(mine), within=ANSWER_WITHIN)


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


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in reversed(tasks):
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
