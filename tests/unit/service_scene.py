"""The services on a store in memory, in virtual time, with faults on demand."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import TYPE_CHECKING, Any, TypeVar

from environment import env_on

from hostler.drivers.store.faulty import FaultyStore
from hostler.drivers.store.memory import MemoryStore
from hostler.engine.idempotent_writer import Writer
from hostler.engine.nodes import NodeService
from hostler.engine.quotas import QuotaService
from hostler.engine.request import Caller, Request
from hostler.engine.view import View
from hostler.engine.vms import VmService
from hostler.engine.workloads.service import WorkloadService
from hostler.keys.families import ALIVE, ANSWERED, AUDIT, COMMAND, HANDLE, LOCK, MEMBER, NAME, VM
from hostler.model.access import ROLES, Role
from hostler.model.inventory import Capacity
from hostler.model.node import Heartbeat, Lifecycle, NodeRecord, VmCommand
from hostler.model.vm import MachineState, VmHandle, VmSpec
from hostler.model.vm_api import VmCreate
from hostler.testing import VirtualClock, run_virtual

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hostler.model.access import Audit
    from hostler.model.vm_api import VmView
    from hostler.ports.store import Store

T = TypeVar("T")
ORG, PROJECT = "acme", "web"
MEMBER_OF_ACME = Caller("mia", ROLES[Role.MEMBER], ("acme/web",), source="10.0.0.9")
STRANGER = Caller("stan", ROLES[Role.ADMIN], ("other",))
VIEWER = Caller("vera", ROLES[Role.VIEWER], ("acme",))
ADMIN = Caller("ada", ROLES[Role.ADMIN], ("*",))
SMALL = VmSpec(cpus=1, memory_mib=512, disk_gib=10)


def asked(caller: Caller = MEMBER_OF_ACME, **more: Any) -> Request:
    """A write that this caller asks for."""
    return Request(caller, **more)


class Scene:
    """One replica's services, its view included. `raw` is the store without its faults."""

    def __init__(self, raw: MemoryStore, store: FaultyStore, clock: VirtualClock, seed: int = 0) -> None:
        self.raw, self.store, self.clock = raw, store, clock
        numbers = itertools.count(1)
        self.new_id = lambda: f"id-{seed}-{next(numbers):05d}"
        self.rng = random.Random(seed)
        self.view = View(store, clock=clock, rng=random.Random(seed))
        self.healthy = True
        self.writer = Writer(
            store, clock=clock, new_id=self.new_id, healthy=lambda: self.healthy, rng=random.Random(seed)
        )
        self.env = env_on(clock, self.rng, new_id=self.new_id)
        self.vms = VmService(store, self.writer, self.view, self.env, lock_ttl=30.0)
        self.nodes = NodeService(store, self.writer, self.view, clock=clock)
        self.quotas = QuotaService(store, self.writer)
        self.workloads = WorkloadService(store, self.writer, self.view, self.env)

    def another(self) -> Scene:
        """The services of a second replica on the same store; its view is not run."""
        return Scene(self.raw, self.store, self.clock, seed=1)

    async def made(self, name: str = "a", **more: Any) -> VmView:
        """A machine."""
        fields = {"name": name, "spec": SMALL, **more}
        return (await self.vms.create(asked(), ORG, PROJECT, VmCreate(**fields))).value

    async def seen(self, vm: VmView, state: MachineState = MachineState.RUNNING, **more: Any) -> VmHandle:
        """What an agent reports of it, from node local-1."""
        fields: dict[str, Any] = {
            "id": vm.id,
            "node": "local-1",
            "state": state,
            "generation": vm.generation,
            "seen_at": 1.0,
            **more,
        }
        handle = VmHandle(**fields)
        put = HANDLE.put(handle, org=vm.org, project=vm.project, vm=vm.id)
        await self.raw.put(put.key, put.value)
        return handle

    async def node(self, node: str = "local-1", *, alive: bool = True, **more: Any) -> None:
        """A node that registered."""
        fields: dict[str, Any] = {
            "node": node,
            "lifecycle": Lifecycle.ON_DUTY,
            "capacity": Capacity(cpus=8, memory_mib=8192, disk_gib=100),
            "registered_at": 1.0,
            **more,
        }
        put = MEMBER.put(NodeRecord(**fields), node=node)
        await self.raw.put(put.key, put.value)
        if alive:
            beat = ALIVE.put(Heartbeat(holder="h", started_at=1.0), node=node)
            await self.raw.put(beat.key, beat.value)
        await self.settle()

    async def told(self, vm: VmView, node: str = "local-1", **more: Any) -> None:
        """The leader's command to have a machine there."""
        command = VmCommand(org=vm.org, project=vm.project, vm=vm.id, spec=vm.spec, **more)
        put = COMMAND.put(command, node=node, vm=vm.id)
        await self.raw.put(put.key, put.value)
        await self.settle()

    async def settle(self) -> None:
        """Until the view has seen what was written."""
        await asyncio.sleep(0.01)

    async def audits(self) -> list[Audit]:
        return [entry.value for entry in (await AUDIT.list(self.raw)).entries]

    async def counts(self) -> dict[str, int]:
        """How many records of each family there are."""
        families = {"vms": VM, "names": NAME, "locks": LOCK, "audits": AUDIT, "answers": ANSWERED}
        return {name: len((await key.list(self.raw)).entries) for name, key in families.items()}  # type: ignore[attr-defined]


def play(story: Callable[[Scene], Awaitable[T]], *, seed: int = 0) -> T:
    """Run the story on a fresh store with the view kept up, and see that no task is left."""

    async def main() -> T:
        clock = VirtualClock()
        raw = MemoryStore(clock=clock, rng=random.Random(seed))
        store = FaultyStore(raw, random.Random(seed), clock=clock)
        async with store:
            scene = Scene(raw, store, clock)
            running = asyncio.create_task(scene.view.run(), name="view")
            try:
                await scene.view.ready()
                return await story(scene)
            finally:
                store.up()
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    return run_virtual(main, seed=seed)


async def contents(store: Store, prefix: str = "/") -> dict[str, bytes]:
    """Everything in a store."""
    return {kv.key: kv.value for kv in (await store.range(prefix)).items}
