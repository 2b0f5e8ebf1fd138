"""One change wakes one agent: many agents on one store, one command written, and the agents that receive it."""

from __future__ import annotations

import asyncio
import random
import statistics
import uuid
from contextlib import AsyncExitStack, asynccontextmanager
from time import perf_counter
from typing import TYPE_CHECKING

from bench.plane_fill import machine
from bench.plane_http import until
from bench.report import Row
from hostler.engine.agent.agent import Agent
from hostler.engine.agent.config import AgentConfig, NodeEnv
from hostler.engine.controllers.decision import first_command
from hostler.errors import Unavailable
from hostler.keys.families import COMMAND
from hostler.kit.clock import SystemClock
from hostler.model.inventory import Capacity
from hostler.ports.machine_driver import NodeSetup
from hostler.wiring import open_machines

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from hostler.ports.store import Store

TTL = 120.0
"""Long, so that heartbeats rarely wake an agent during the measurement."""
SETTLE = 0.3
"""Seconds in which other agents could wake up after the right one."""
PATIENCE = 180.0


async def measure(
    store: Store, name: str, *, folder: Path, agents: int, changes: int, tell: Callable[[str], None]
) -> list[Row]:
    """Measure changes, each of one node's command."""
    tell(f"{agents:,} agents on {name}")
    rng = random.Random(2)  # noqa: S311 - the same nodes each time
    woken: list[str] = []
    times: list[float] = []
    numbers: list[int] = []
    async with _agents(store, folder / f"agents-{name}", agents) as running:
        for agent in running:
            agent.commands.listen(lambda key: woken.append(COMMAND.parse(key)["node"]))
            await agent.commands.ready()
        for number in range(changes):
            tell(f"{agents:,} agents on {name}: change {number + 1} of {changes}")
            node = f"bench-{rng.randrange(agents)}"
            woken.clear()
            before = [agent.state().steps for agent in running]
            times.append(await _time_wake(store, node, number, woken))
            await asyncio.sleep(SETTLE)
            worked = sum(agent.state().steps > steps for agent, steps in zip(running, before))
            numbers.append(max(len(set(woken)), worked))
    what = f"{agents:,} agents on {name}: "
    return [
        Row(what=what + "woken by one change, at most", found=max(numbers), unit="", wanted=1, at_most=True),
        Row(what=what + "from the write to its agent, p50", found=statistics.median(times) * 1000, unit="ms"),
        Row(what=what + "from the write to its agent, at most", found=max(times) * 1000, unit="ms"),
    ]


async def _time_wake(store: Store, node: str, number: int, woken: list[str]) -> float:
    """Write a command. Return the seconds until an agent receives it."""
    vm = machine(number)
    put = COMMAND.put(first_command(vm, None, fence=1, reasons=()), node=node, vm=vm.id)
    began = perf_counter()
    await store.txn([], [put])
    while node not in woken:
        if perf_counter() - began > PATIENCE:
            raise Unavailable(f"agent of {node}: did not receive its command within {PATIENCE:g} s")
        await asyncio.sleep(0)
    return perf_counter() - began


@asynccontextmanager
async def _agents(store: Store, folder: Path, count: int) -> AsyncIterator[list[Agent]]:
    """Run registered agents with simulated machines, each in its own folder."""
    clock = SystemClock()
    running: list[Agent] = []
    tasks: list[asyncio.Task[None]] = []
    async with AsyncExitStack() as stack:
        for number in range(count):
            place = folder / str(number)
            place.mkdir(parents=True)
            capacity = Capacity(cpus=8, memory_mib=65536, disk_gib=1000)
            opened = open_machines(NodeSetup(kind="simulated", folder=place, capacity=capacity))
            machines = await stack.enter_async_context(opened)
            plan = AgentConfig(
                node=f"bench-{number}", node_ttl=TTL, fencing_time=2 * TTL, look_every=3600.0, sweep_every=3600.0
            )
            env = NodeEnv(store=store, machines=machines, config=plan, clock=clock, new_id=lambda: uuid.uuid4().hex)
            running.append(Agent(env))
        try:
            tasks += [asyncio.create_task(agent.run(), name="bench: agent") for agent in running]

            async def registered() -> bool:
                return all(agent.session.open for agent in running)

            await until("agents register", registered, PATIENCE)
            yield running
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
