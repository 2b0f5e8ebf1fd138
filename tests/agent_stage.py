"""A stage for agents: a store that can fail, places with simulated machines, and a leader's hand, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from hostler.drivers.machines.simulated import MachineFaults, MemoryHost, SimulatedMachines
from hostler.drivers.store.faulty import FaultyStore
from hostler.drivers.store.memory import MemoryStore
from hostler.engine.agent.agent import Agent
from hostler.engine.agent.config import AgentConfig, NodeEnv
from hostler.errors import Unavailable
from hostler.keys.families import ALIVE, COMMAND, HANDLE, MEMBER
from hostler.kit.virtual_loop import VirtualClock
from hostler.model.node import NodeRecord, VmCommand
from hostler.model.vm import MachineState, VmHandle, VmSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from hostler.drivers.machines.simulated import SimulatedHost
    from hostler.engine.cluster_id import Memory
    from hostler.keys.entry import Entry
    from hostler.model.node import Heartbeat
    from hostler.ports.machines import Channel, ChannelKind, Machine
    from hostler.ports.store import Store

T = TypeVar("T")
SPEC = VmSpec(cpus=1, memory_mib=64)
TTL, FENCING = 15.0, 30.0


class Running:
    """One agent and its machines, as a process has them."""

    def __init__(self, agent: Agent, machines: SimulatedMachines, place: SimulatedHost) -> None:
        self.agent, self.machines, self.place = agent, machines, place
        self.task = asyncio.create_task(agent.run(), name="agent")

    async def crash(self) -> None:
        """As by SIGKILL: nothing is said to anybody; the place is free for the next."""
        self.task.cancel()
        await asyncio.wait((self.task,))
        self.place.disown()

    async def leave(self, leaving: bool = True) -> None:
        await self.agent.aclose(leaving)
        await asyncio.wait((self.task,))
        await self.machines.aclose()

    async def machine(self, vm: str = "v") -> Machine | None:
        return await self.machines.inspect(vm)


class Stage:
    def __init__(self, bare: MemoryStore, store: FaultyStore, clock: VirtualClock, rng: random.Random) -> None:
        self.bare, self.store, self.clock, self.rng = bare, store, clock, rng
        self.running: list[Running] = []
        self._ids = itertools.count(1)

    async def agent(
        self,
        node: str = "a",
        *,
        place: SimulatedHost | None = None,
        store: Store | None = None,
        faults: MachineFaults | None = None,
        step: Any = None,
        clock: VirtualClock | None = None,
        memory: Memory | None = None,
        accept: bool = False,
        **plan: Any,
    ) -> Running:
        place = place or MemoryHost(f"place {next(self._ids)}")
        clock = clock or self.clock
        machines = SimulatedMachines(place, clock=clock, rng=self.rng, faults=faults)
        machines.step = step
        await machines.__aenter__()
        env = NodeEnv(
            store=store or self.store,
            machines=machines,
            config=AgentConfig(node=node, **plan),
            clock=clock,
            rng=random.Random(self.rng.random()),
            new_id=lambda: f"id-{next(self._ids)}",
        )
        agent = Agent(env, peers=self, memory=memory, accept=accept)
        running = Running(agent, machines, place)
        self.running.append(running)
        return running

    def channel(self, node: str, vm: str, door: ChannelKind) -> Channel:
        """As `Peers`: all agents of a stage reach each other."""
        for running in reversed(self.running):
            if running.agent.state().node == node and not running.task.done():
                return running.machines.channel(vm, door)
        raise Unavailable(f"node {node}: no agent runs there")

    # The leader's hand

    async def command(self, vm: str = "v", node: str = "a", **fields: Any) -> Entry[VmCommand]:
        """Place a machine: command and handle in one transaction."""
        record = msgspec.structs.replace(VmCommand(org="o", project="p", vm=vm, spec=SPEC), **fields)
        handle = VmHandle(id=vm, node=node, state=MachineState.PLACED, seen_at=0.0)
        await self.bare.txn(
            [], [COMMAND.put(record, node=node, vm=vm), HANDLE.put(handle, org="o", project="p", vm=vm)]
        )
        entry = await COMMAND.get(self.bare, node=node, vm=vm)
        assert entry is not None
        return entry

    async def change(self, vm: str = "v", node: str = "a", **fields: Any) -> VmCommand:
        entry = await COMMAND.get(self.bare, node=node, vm=vm)
        assert entry is not None
        fields.setdefault("generation", entry.value.generation + 1)
        return (await COMMAND.replace(self.bare, entry, msgspec.structs.replace(entry.value, **fields))).value

    async def remove(self, vm: str = "v", node: str = "a") -> None:
        await self.bare.delete(COMMAND.fill(node=node, vm=vm))

    async def member(self, node: str = "a") -> NodeRecord | None:
        entry = await MEMBER.get(self.bare, node=node)
        return None if entry is None else entry.value

    async def alive(self, node: str = "a") -> Entry[Heartbeat] | None:
        return await ALIVE.get(self.bare, node=node)

    async def handle_entry(self, vm: str = "v") -> Entry[VmHandle] | None:
        return await HANDLE.get(self.bare, org="o", project="p", vm=vm)

    async def handle(self, vm: str = "v") -> VmHandle:
        entry = await self.handle_entry(vm)
        assert entry is not None
        return entry.value

    async def reaches(self, vm: str, state: MachineState, within: float = 30.0, **fields: Any) -> VmHandle:
        """Until the handle says so."""

        async def holds() -> bool:
            handle = await self.handle(vm)
            return handle.state is state and all(getattr(handle, name) == value for name, value in fields.items())

        await self.until(holds, within, lambda: f"{vm} {state} {fields}")
        return await self.handle(vm)

    async def until(self, holds: Callable[[], Any], within: float = 30.0, what: Callable[[], str] = str) -> float:
        """Until it holds; how long that took. Asked often: what is awaited is a condition, not a time."""
        started = self.clock.now()
        while True:
            answer = holds()
            if await answer if asyncio.iscoroutine(answer) else answer:
                return self.clock.now() - started
            if self.clock.now() - started > within:
                states = [running.agent.state() for running in self.running]
                raise AssertionError(f"not within {within} s: {what()}; {states}")
            await asyncio.sleep(0.05)


@asynccontextmanager
async def stage(seed: int = 0, **memory: Any) -> AsyncIterator[Stage]:
    clock, rng = VirtualClock(), random.Random(seed)
    bare = MemoryStore(clock=clock, rng=rng, **memory)
    store = FaultyStore(bare, random.Random(seed), clock=clock)
    async with store:
        await bare.grant(1e8)  # the store's own task must belong to nobody
        it = Stage(bare, store, clock, rng)
        try:
            yield it
        finally:
            for running in it.running:
                if not running.task.done():
                    running.task.cancel()
                    await asyncio.wait((running.task,))
            assert not [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("machine ")]
