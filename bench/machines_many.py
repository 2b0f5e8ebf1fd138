"""Cost of machines to their node's agent: creating one, memory per machine, inspecting all of them.

Where only the number of machines counts, their guest is four bytes of code that halt. To the agent each is a process
like any other, with the same connections.
"""

from __future__ import annotations

import asyncio
import statistics
from contextlib import asynccontextmanager
from time import perf_counter
from typing import TYPE_CHECKING

from bench.machines_plane import TINY
from bench.report import Row
from hostler.errors import Conflict
from hostler.model.inventory import Capacity
from hostler.model.vm import MachineState, VmSpec
from hostler.ports.machine_driver import NodeSetup
from hostler.ports.machines import Label, MachinePlan
from hostler.wiring import open_images, open_machines

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from bench.machines_plane import RealPlane
    from hostler.ports.machines import Machines
    from hostler.settings import Settings

MAKE_MS, INSPECT_MS, MEMORY_MIB = 50, 100, 1
FIRST = 10
"""The memory with this many machines is the baseline: by then all needed code is loaded."""
IDLE, IDLE_MIB, IDLE_BYTES = "idle", 16, 2**20
RESTS = b"\xfa\xf4\xeb\xfd"
"""Code of a boot sector: disable interrupts, halt, repeat."""
PARTITION = bytes([0x80, 0, 0, 0, 0x83, 0, 0, 0]) + (1).to_bytes(4, "little") * 2
"""A partition of one sector; a disk without one is not recognized."""
SETTLES = 2.0
"""Seconds in which the memory used to create a machine is released."""
LOOKS = 20


async def make(settings: Settings, folder: Path, *, times: int, tell: Callable[[str], None]) -> list[Row]:
    """Measure the driver's part of a new machine: folder, record, host key and disk."""
    took = []
    async with _machines(settings, folder) as machines:
        for number in range(times + 1):
            tell(f"making machine {number} of {times}")
            vm = f"made-{number}"
            plan = MachinePlan(
                label=Label("bench", "bench", vm), spec=VmSpec(cpus=1, memory_mib=128, image=TINY), name=vm
            )
            before = perf_counter()
            await machines.create(plan)
            took.append(perf_counter() - before)
            await machines.delete(vm)
    found = statistics.median(took[1:])  # the first also loads code
    return [Row(what="overlay, host key and record", found=1000 * found, unit="ms", wanted=MAKE_MS, at_most=True)]


async def memory(plane: RealPlane, folder: Path, *, count: int, tell: Callable[[str], None]) -> list[Row]:
    """Measure the memory of the `hostler up` process, agent included, as the number of machines grows."""
    disk = folder / "idle.raw"
    await asyncio.to_thread(disk.write_bytes, idle_disk())
    options = {"probe": "none", "seeding": "none", "memory_mib": str(IDLE_MIB)}
    images = open_images(plane.settings.data / "images")
    await images.add(IDLE, str(disk), sha256=None, options=options, progress=lambda *_: None)
    found: dict[int, float] = {}
    for number in range(1, count + 1):
        await plane.create_machine(memory_mib=IDLE_MIB, image=IDLE)
        if number in (min(FIRST, count - 1), count):
            await asyncio.sleep(SETTLES)
            found[number] = plane.process.memory_mib("VmRSS")
            tell(f"{number} machines: {found[number]:.0f} MiB")
    (few, before), (many, after) = sorted(found.items())
    return [
        Row(
            what=f"memory for each machine, {few} to {many}",
            found=(after - before) / (many - few),
            unit="MiB",
            wanted=MEMORY_MIB,
            at_most=True,
        ),
        Row(what=f"… of the whole process with {many}", found=after, unit="MiB"),
    ]


def idle_disk() -> bytes:
    """Return a disk image whose guest does nothing."""
    first = RESTS.ljust(446, b"\0") + PARTITION.ljust(64, b"\0") + b"\x55\xaa"
    return first.ljust(IDLE_BYTES, b"\0")


async def inspect(settings: Settings, folder: Path, *, count: int) -> list[Row]:
    """Open the folder of running machines that an earlier process left, inspect each, and delete all."""
    before = perf_counter()
    async with _machines(settings, folder) as machines:
        opened = perf_counter() - before
        vms = [machine.label.vm for machine in await machines.list()]
        looks = []
        for _ in range(LOOKS):
            before = perf_counter()
            seen = [await machines.inspect(vm) for vm in vms]
            looks.append(perf_counter() - before)
        running = sum(1 for one in seen if one is not None and one.state is MachineState.RUNNING)
        await asyncio.gather(*(machines.delete(vm) for vm in vms))
    if running != count:
        raise Conflict(f"bench: {running} of {count} machines were found running; check the free memory")
    return [
        Row(
            what=f"inspect of {count} machines",
            found=1000 * statistics.median(looks),
            unit="ms",
            wanted=INSPECT_MS,
            at_most=True,
        ),
        Row(what=f"{count} running machines found again by a new agent", found=1000 * opened, unit="ms"),
    ]


@asynccontextmanager
async def _machines(settings: Settings, folder: Path) -> AsyncIterator[Machines]:
    nothing = Capacity(cpus=1, memory_mib=1, disk_gib=1)  # the driver uses the capacity of the host
    async with open_machines(NodeSetup(kind="qemu", folder=folder, capacity=nothing, settings=settings)) as machines:
        yield machines
