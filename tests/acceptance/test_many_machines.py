"""Simulated machines are cheap enough for 100,000 of them in one process (`make test` takes 20,000).

Counted in CPU time, for others may share the machine. A cost that grows with the number of machines breaks the ratio.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from dose import dose
from harness import pace

from hostler.model.vm import MachineState, VmSpec
from hostler.ports.machines import Label, MachinePlan
from hostler.testing import FileHost, MemoryHost, SimulatedMachines

COUNT = dose(test=20_000, full=100_000)
SPEC = VmSpec(cpus=1, memory_mib=64)


async def run(machines: SimulatedMachines, count: int) -> None:
    await machines.hold(600)
    for number in range(count):
        vm = f"vm-{number}"
        await machines.create(MachinePlan(label=Label("org", "project", vm, "cluster"), spec=SPEC, fenced=True))
        await machines.start(vm)


def test_many_machines_in_one_process_are_cheap() -> None:
    async def spent(count: int) -> float:
        began = time.process_time()
        async with SimulatedMachines(MemoryHost()) as m:
            await run(m, count)
            for number in range(count):
                await m.inspect(f"vm-{number}")
            assert len(await m.list()) == count
            await m.hold(0)
            assert {machine.state for machine in await m.list()} == {MachineState.STOPPED}
        return time.process_time() - began

    asyncio.run(spent(1_000))
    began = time.monotonic()
    few, many = asyncio.run(spent(COUNT // 10)), asyncio.run(spent(COUNT))
    pace.check(many, COUNT * 100e-6, since=began, what=f"{COUNT} machines: their processor time")
    assert many < 25 * few, f"10 times as many took {many / few:.0f} times as long"


async def test_many_machines_open_soon(tmp_path: Path) -> None:
    async def spent(folder: Path, count: int) -> tuple[float, float]:
        began = time.process_time()
        async with SimulatedMachines(FileHost(folder)) as m:
            await run(m, count)
        made = time.process_time()
        async with SimulatedMachines(FileHost(folder)) as m:
            first = time.process_time()
            assert len(m._place.contents.rows) == count
        async with SimulatedMachines(FileHost(folder)):
            pass
        return made - began, max(first - made, time.process_time() - first)

    await spent(tmp_path / "warm", 1_000)
    began = time.monotonic()
    few, _ = await spent(tmp_path / "few", COUNT // 10)
    many, opening = await spent(tmp_path / "many", COUNT)
    pace.check(opening, COUNT * 20e-6, since=began, what=f"opening {COUNT} machines: its processor time")
    assert many < 25 * few, f"10 times as many took {many / few:.0f} times as long"
