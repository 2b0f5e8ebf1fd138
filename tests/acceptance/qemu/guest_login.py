"""Machines with the tiny guest, and what is said inside them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from guests import KEY, KEYS, SOME, available, login, run
from harness.pace import patience
from warm_image import OPTIONS

from hostler.drivers.machines.qemu.driver import QemuMachines
from hostler.model.vm import Step, VmSpec
from hostler.ports.machines import Label, MachinePlan

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from hostler.drivers.machines.qemu.images.folder import ImageFolder
    from hostler.ports.machines import Machines

__all__ = ["KEY", "SOME", "available", "login", "node", "not_available", "plan", "run"]


def plan(vm: str, *, memory_mib: int = 128, fenced: bool = False) -> MachinePlan:
    spec = VmSpec(cpus=1, memory_mib=memory_mib, ssh_keys=KEYS)
    return MachinePlan(label=Label("org", "project", vm), spec=spec, name=vm, fenced=fenced)


@asynccontextmanager
async def node(folder: Path, images: ImageFolder, **options: Any) -> AsyncIterator[QemuMachines]:
    """A node whose machines end with the test, however that ends."""
    settled = msgspec.structs.replace(OPTIONS, **options)
    async with QemuMachines(folder, images=images, options=settled) as machines:
        try:
            yield machines
        finally:
            for machine in await machines.list():
                await machines.delete(machine.label.vm)


async def not_available(machines: Machines, vm: str) -> None:
    """Until it was noticed that a guest begins anew."""
    async with asyncio.timeout(patience(SOME)):
        while (machine := await machines.inspect(vm)) and machine.readiness is not None:
            if machine.readiness.step is not Step.AVAILABLE:
                return
            await asyncio.sleep(0.002)
