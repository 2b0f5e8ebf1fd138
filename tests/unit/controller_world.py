"""A store, a view, leaders and scripted nodes in virtual time, for the tests of the controllers."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.drivers.store.faulty import FaultyStore
from hostler.drivers.store.memory import MemoryStore
from hostler.drivers.ttl.store import StoreTtlStorage
from hostler.engine.controllers.brake import Brake
from hostler.engine.controllers.janitor import Janitor
from hostler.engine.controllers.machines import MachineController
from hostler.engine.controllers.nodes import NodeController
from hostler.engine.elections import Elections
from hostler.engine.runtime.env import ControllerEnv
from hostler.engine.view import View
from hostler.errors import HostlerError
from hostler.keys.families import ALIVE, COMMAND, HANDLE, MEMBER, NAME, VM
from hostler.kit.virtual_loop import VirtualClock, run_virtual
from hostler.model.inventory import Capacity
from hostler.model.node import Heartbeat, Lifecycle, NodeRecord, OffConfirmation, VmCommand
from hostler.model.vm import MachineState, Power, Snapshot, SnapshotState, VirtualMachine, VmHandle, VmSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from hostler.engine.elections import Leadership
    from hostler.ports.store import Store

ORG, PROJECT = "o", "p"
KEY = "sysvvm/1/1"
F = 30.0


def vm(id_: str, **changes: Any) -> VirtualMachine:
    spec = changes.pop("spec", VmSpec(cpus=1, memory_mib=1024))
    fields: dict[str, Any] = {"id": id_, "name": f"name-{id_}", "org": ORG, "project": PROJECT, "created_at": 0.0}
    return VirtualMachine(**{**fields, "spec": spec, **changes})


def node(name: str, **changes: Any) -> NodeRecord:
    fields: dict[str, Any] = {
        "node": name,
        "lifecycle": Lifecycle.ON_DUTY,
        "capacity": Capacity(cpus=8, memory_mib=65536, disk_gib=1000),
        "fences": True,
        "fencing_time": F,
        "registered_at": 0.0,
    }
    return NodeRecord(**{**fields, **changes})


class Node:
    """A scripted agent: does at once what it is told, and remembers every interval in which a machine ran."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.machines: dict[str, bool] = {}
        self.snapshots: dict[str, set[str]] = {}
        self.seen: list[VmCommand] = []
        self.stuck = False
        self.stuck_on: set[str] = set()
        self._lease: Any = None
        self._tasks: list[asyncio.Task[None]] = []

    async def join(self, **changes: Any) -> None:
        store = self.world.raw
        self._lease = await store.grant(15.0)
        old = await MEMBER.get(store, node=self.name)
        record = node(self.name, **{"lifecycle": Lifecycle.JOINING, **changes})
        if old is not None and old.value.lifecycle in (Lifecycle.DRAINING, Lifecycle.DECOMMISSIONED):
            record = msgspec.structs.replace(record, lifecycle=old.value.lifecycle, drain=old.value.drain)
        await store.txn(
            [],
            [
                MEMBER.put(record, node=self.name),
                ALIVE.put(Heartbeat(holder=self.name, started_at=0.0), node=self.name, lease=self._lease.id),
            ],
        )
        self._tasks = [
            asyncio.create_task(self._beat(), name=f"{self.name} beats"),
            asyncio.create_task(self._work(), name=f"{self.name} works"),
        ]

    async def fall_silent(self) -> None:
        """No more heartbeats and no more work; what runs runs, unless it is fenced."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(3.0)
            await self._lease.keep_alive()

    async def _work(self) -> None:
        store = self.world.raw
        while True:
            if not self.stuck:
                listing = await COMMAND.list(store, node=self.name)
                here = {entry.value.vm for entry in listing.entries}
                for vm_id in [vm_id for vm_id in self.machines if vm_id not in here]:
                    self.world.stopped(self.name, vm_id)
                    del self.machines[vm_id]
                for entry in listing.entries:
                    if entry.value.vm not in self.stuck_on:
                        await self._obey(entry)
            await asyncio.sleep(0.5)

    async def _obey(self, entry: Any) -> None:
        command: VmCommand = entry.value
        if not self.seen or self.seen[-1] != command:
            self.seen.append(command)
        on = command.power is Power.ON and not command.deleting
        if command.deleting:
            self.machines.pop(command.vm, None)
            self.snapshots.pop(command.vm, None)
            state = MachineState.GONE
        else:
            self.machines[command.vm] = on
            state = MachineState.RUNNING if on else MachineState.STOPPED
            self.snapshots[command.vm] = {name for name in command.snapshots if name not in command.lost}
        (self.world.started if on else self.world.stopped)(self.name, command.vm)
        handle = VmHandle(
            id=command.vm,
            node=self.name,
            state=state,
            generation=command.generation,
            resets=command.resets,
            snapshots={
                name: Snapshot(
                    state=SnapshotState.FAILED if name in command.lost else SnapshotState.READY, taken_at=0.0
                )
                for name in command.snapshots
            },
            seen_at=0.0,
        )
        old = await HANDLE.get(self.world.raw, org=command.org, project=command.project, vm=command.vm)
        if old is None or old.value != handle:
            ids = {"org": command.org, "project": command.project, "vm": command.vm}
            alive = await ALIVE.get(self.world.raw, node=self.name)
            if alive is not None:
                await self.world.raw.txn(
                    [COMMAND.unchanged(entry), ALIVE.same_life(alive)], [HANDLE.put(handle, **ids)]
                )


class Skewed:
    """A clock whose calendar is `ahead` of the world's."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock, self.ahead = clock, 0.0
        self.now, self.sleep = clock.now, clock.sleep

    def wall(self) -> float:
        return self._clock.wall() + self.ahead


class Leader:
    """Controllers under one leadership, on a store of their own that can break."""

    def __init__(self, world: World, name: str, ahead: float = 0.0) -> None:
        self.world, self.name = world, name
        self.clock = Skewed(world.clock)
        self.clock.ahead = ahead
        self.store = FaultyStore(world.raw, random.Random(name), clock=world.clock)
        self.view = View(self.store, clock=self.clock, rng=random.Random(name))
        self.elections = Elections(StoreTtlStorage(world.raw), clock=world.clock, new_id=lambda: name)
        self.told: list[str] = []
        self._leadership: Leadership | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.power: Any = None
        self.tracer: Any = None
        self.failed: Exception | None = None

    @property
    def leadership(self) -> Leadership:
        assert self._leadership is not None
        return self._leadership

    async def lead(self, ttl: float = 20.0) -> None:
        while self._leadership is None:
            self._leadership = await self.elections.acquire(KEY, self.name, ttl=ttl)
            await asyncio.sleep(0.5)
        self._tasks.append(asyncio.create_task(self.view.run(), name=f"{self.name}: view"))
        await self.view.ready()
        rng, clock = random.Random(self.name), self.clock
        ids = iter(range(10**9))
        env = ControllerEnv(
            store=self.store, clock=clock, rng=rng, new_id=lambda: f"{next(ids)}", tell=self.told.append
        )
        traced = replace(env, tracer=self.tracer)
        self.brake = Brake(traced, self.view)
        self.machines = MachineController(env, self.view, brake=self.brake, release=self.world.release)
        self.nodes = NodeController(traced, self.view, brake=self.brake, power=self.power)
        self.janitor = Janitor(env, self.view)
        for service in (self.brake, self.machines, self.nodes, self.janitor):
            await service.start(self)
            self._tasks.append(asyncio.create_task(self._run(service), name=f"{self.name}: {service.name}"))

    async def _run(self, service: Any) -> None:
        try:
            await service.run()
        except HostlerError as error:
            self.failed = self.failed or error

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._leadership is not None:
            await self._leadership.release()
        await self.elections.aclose()


class World:
    def __init__(self, raw: MemoryStore, clock: VirtualClock) -> None:
        self.raw, self.clock = raw, clock
        self.leaders: list[Leader] = []
        self.nodes: dict[str, Node] = {}
        self.running: dict[str, set[str]] = {}
        self.released: list[str] = []

    def started(self, name: str, vm_id: str) -> None:
        where = self.running.setdefault(vm_id, set())
        where.add(name)
        assert len(where) == 1, f"{vm_id} runs on {sorted(where)}"

    def stopped(self, name: str, vm_id: str) -> None:
        self.running.get(vm_id, set()).discard(name)

    async def release(self, _: Store, machine: VirtualMachine) -> tuple[list[Any], list[Any]]:
        self.released.append(machine.id)
        return [], []

    async def leader(self, name: str = "l1", *, ahead: float = 0.0, **options: Any) -> Leader:
        leader = Leader(self, name, ahead)
        for option, value in options.items():
            setattr(leader, option, value)
        self.leaders.append(leader)
        await leader.lead()
        return leader

    async def node(self, name: str, **changes: Any) -> Node:
        joined = self.nodes[name] = Node(self, name)
        await joined.join(**changes)
        return joined

    async def full_node(self) -> None:
        """A node that lives and takes no machine: with it, another one that is lost is not all of the cluster."""
        await self.node("full", capacity=Capacity(cpus=0, memory_mib=0))

    # Wishes

    async def create(self, id_: str, **changes: Any) -> VirtualMachine:
        record = vm(id_, **changes)
        await self.raw.txn(
            [],
            [
                VM.put(record, org=ORG, project=PROJECT, vm=id_),
                NAME.put(id_, org=ORG, project=PROJECT, name=record.name),
            ],
        )
        return record

    async def change(self, id_: str, **changes: Any) -> None:
        entry = await VM.get(self.raw, **ids(id_))
        assert entry is not None
        record = msgspec.structs.replace(entry.value, generation=entry.value.generation + 1, **changes)
        await VM.replace(self.raw, entry, record)

    async def member(self, name: str, **changes: Any) -> None:
        entry = await MEMBER.get(self.raw, node=name)
        assert entry is not None
        await MEMBER.replace(self.raw, entry, msgspec.structs.replace(entry.value, **changes))

    async def confirm_off(self, name: str) -> None:
        for vm_id, up in self.nodes[name].machines.items():
            if up:
                self.stopped(name, vm_id)
        await self.member(name, off=OffConfirmation(by="op", at=0.0))

    # What there is

    async def handle(self, id_: str) -> VmHandle | None:
        entry = await HANDLE.get(self.raw, **ids(id_))
        return None if entry is None else entry.value

    async def command(self, name: str, id_: str) -> VmCommand | None:
        entry = await COMMAND.get(self.raw, node=name, vm=id_)
        return None if entry is None else entry.value

    async def state(self, id_: str) -> MachineState | None:
        handle = await self.handle(id_)
        return None if handle is None else handle.state

    async def keys(self, prefix: str = "/") -> list[str]:
        return [kv.key for kv in (await self.raw.range(prefix)).items]

    async def until(self, condition: Callable[[], Awaitable[bool]], within: float = 100.0) -> float:
        """Seconds that it took."""
        began = self.clock.now()
        while not await condition():
            assert self.clock.now() - began < within, f"not within {within} s"
            await asyncio.sleep(0.1)
        return self.clock.now() - began

    async def until_state(self, id_: str, state: MachineState | None, within: float = 100.0) -> float:
        async def reached() -> bool:
            return await self.state(id_) is state

        return await self.until(reached, within)


def ids(id_: str) -> dict[str, Any]:
    return {"org": ORG, "project": PROJECT, "vm": id_}


@asynccontextmanager
async def _world() -> AsyncIterator[World]:
    clock = VirtualClock()
    async with MemoryStore(clock=clock) as raw:
        world = World(raw, clock)
        try:
            yield world
        finally:
            for leader in world.leaders:
                await leader.end()
            for each in world.nodes.values():
                await each.fall_silent()


def play(story: Callable[[World], Awaitable[None]], *, seed: int = 0) -> None:
    async def main() -> None:
        async with _world() as world:
            await story(world)

    run_virtual(main, seed=seed)
