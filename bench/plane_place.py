"""Durable placement: from VM specs in the store to commands in the store, by the leader's real controller."""

from __future__ import annotations

import asyncio
import statistics
from contextlib import asynccontextmanager
from time import perf_counter, process_time
from typing import TYPE_CHECKING

from bench.leading import lead
from bench.plane_fill import fill_nodes, write_specs
from bench.plane_http import until
from bench.plane_shape import Recorder
from bench.report import Row
from hostler.keys.families import COMMAND

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from bench.plane_shape import Shape
    from hostler.engine.controllers.machines import MachineController
    from hostler.ports.store import Store

WANTED = 1_000
WIDTH = 64
"""As many names as the controller reconciles at once."""
ROUNDS = 3
PATIENCE = 120.0


async def measure(store: Store, nodes: int, machines: int, tell: Callable[[str], None]) -> list[Row]:
    """Place machines in three rounds, alternating with the same number of bare transactions."""
    tell(f"durable placement: {nodes:,} nodes")
    await fill_nodes(store, nodes)
    recorder = Recorder(store, COMMAND.prefix())
    ours: list[tuple[float, float]] = []
    bare: list[tuple[float, float]] = []
    each = max(1, machines // ROUNDS)
    async with _controller(recorder) as controller:
        for number in range(ROUNDS):
            tell(f"durable placement: round {number + 1} of {ROUNDS}")
            ours.append(await _time(each, _place(store, controller, range(number * each, (number + 1) * each))))
            bare.append(await _time(each, _bare(store, recorder.recorded(), number, each)))
    found, other = (statistics.median(rate for rate, _ in side) for side in (ours, bare))
    cpu, other_cpu = (statistics.median(spent for _, spent in side) for side in (ours, bare))
    return [
        Row(
            what=f"placed durably, {nodes:,} nodes",
            found=found,
            unit="per second",
            wanted=WANTED,
            against="the bare transaction",
            other=other,
            ratio=found / other,
            cpu_ratio=other_cpu / cpu,
        )
    ]


async def _time(count: int, work: asyncio.Task[None]) -> tuple[float, float]:
    """Return the rate per second, and the processor time of one."""
    began, worked = perf_counter(), process_time()
    await work
    return count / (perf_counter() - began), (process_time() - worked) / count


def _place(store: Store, controller: MachineController, numbers: range) -> asyncio.Task[None]:
    """Write the VM specs, and wait until each has its command."""

    async def work() -> None:
        goal = controller.counters.get("place", 0) + len(numbers)

        async def done() -> bool:
            return controller.counters.get("place", 0) >= goal

        await write_specs(store, numbers)
        await until(f"placing {len(numbers)} machines", done, PATIENCE)

    return asyncio.create_task(work(), name="bench: placing")


def _bare(store: Store, shape: Shape, round_: int, count: int) -> asyncio.Task[None]:
    async def client(number: int) -> None:
        for turn in range(number, count, WIDTH):
            await shape.send(store, f"{round_}-{turn}")

    async def work() -> None:
        await asyncio.gather(*(client(number) for number in range(WIDTH)))

    return asyncio.create_task(work(), name="bench: bare")


@asynccontextmanager
async def _controller(store: Store) -> AsyncIterator[MachineController]:
    async with lead(store, lambda graph: (graph.machine_controller(None),)) as (controller,):
        yield controller
