"""What the suite of machine drivers must know of the simulated ones."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

from hostler.ports.machines import ChannelKind
from hostler.testing import MachineSetup, MemoryHost, SimulatedMachines

if TYPE_CHECKING:
    from hostler.drivers.machines.simulated import SimulatedHost
    from hostler.ports.machines import Machines

IMAGES = ("", "tiny")


async def asked(machines: Machines, vm: str, line: str) -> str:
    """What a machine's console answers to a line."""
    async with machines.channel(vm, ChannelKind.CONSOLE) as console:
        await console.write(line.encode() + b"\n")
        return (await console.read()).decode()


async def save(machines: Machines, vm: str, text: str) -> None:
    assert "saved" in await asked(machines, vm, f"save {text}")


async def show(machines: Machines, vm: str) -> str:
    return (await asked(machines, vm, "show")).split("\r\n")[2]


async def boots(machines: Machines, vm: str) -> int:
    found = re.search(r"boot (\d+)", await asked(machines, vm, ""))
    assert found
    return int(found[1])


async def power_off(machines: Machines, vm: str) -> None:
    await asked(machines, vm, "poweroff")


SETUP = MachineSetup(
    unknown_image="no-such-image",
    within=30,
    grace=0.02,
    hold=0.2,
    late=0.2,
    now=lambda machines: machines.clock.now(),  # type: ignore[attr-defined]
    save=save,
    show=show,
    boots=boots,
    elsewhere=lambda: simulated(MemoryHost("elsewhere")),
    power_off=power_off,
)


async def pause(_: str) -> None:
    """A step that can be interrupted before and after."""
    await asyncio.sleep(0)


def simulated(
    place: SimulatedHost, kind: type[SimulatedMachines] = SimulatedMachines, **options: Any
) -> SimulatedMachines:
    """A driver that waits at each of its steps."""
    machines = kind(place, **({"images": IMAGES} | options))
    machines.step = pause
    return machines
