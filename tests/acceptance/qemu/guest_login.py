"""Machines with the tiny guest, and what is said inside them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import asyncssh
from warm_image import OPTIONS

from hostler.drivers.machines.qemu.driver import QemuMachines
from hostler.model.vm import Step, VmSpec
from hostler.ports.machines import Label, MachinePlan

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from hostler.drivers.machines.qemu.images.folder import ImageFolder
    from hostler.model.vm import Access
    from hostler.ports.machines import Machines

KEY = asyncssh.generate_private_key("ssh-ed25519")
WITHIN = 120.0
"""For what a quiet machine does in some five seconds."""


def plan(vm: str, *, memory_mib: int = 128, fenced: bool = False) -> MachinePlan:
    spec = VmSpec(cpus=1, memory_mib=memory_mib, ssh_keys=(KEY.export_public_key().decode().strip(),))
    return MachinePlan(label=Label("org", "project", vm), spec=spec, name=vm, fenced=fenced)


@asynccontextmanager
async def node(folder: Path, images: ImageFolder) -> AsyncIterator[QemuMachines]:
    """A node whose machines end with the test, however that ends."""
    async with QemuMachines(folder, images=images, options=OPTIONS) as machines:
        try:
            yield machines
        finally:
            for machine in await machines.list():
                await machines.delete(machine.label.vm)


async def available(machines: Machines, vm: str) -> Access:
    """Where a machine can be logged into, once it can."""
    async with asyncio.timeout(WITHIN):
        while True:
            machine = await machines.inspect(vm)
            assert machine is not None
            if machine.readiness is not None and machine.readiness.step is Step.AVAILABLE:
                assert machine.access is not None
                return machine.access
            await asyncio.sleep(0.02)


async def not_available(machines: Machines, vm: str) -> None:
    """Until it was noticed that a guest begins anew."""
    async with asyncio.timeout(WITHIN):
        while (machine := await machines.inspect(vm)) and machine.readiness is not None:
            if machine.readiness.step is not Step.AVAILABLE:
                return
            await asyncio.sleep(0.002)


async def login(access: Access) -> asyncssh.SSHClientConnection:
    known = asyncssh.import_known_hosts("".join(f"* {key}\n" for key in access.host_keys))
    async with asyncio.timeout(WITHIN):
        return await asyncssh.connect(
            access.host,
            access.port,
            username=access.user,
            client_keys=[KEY],
            known_hosts=known,
            config=None,
            agent_path=None,
        )


async def run(machines: Machines, vm: str, command: str) -> str:
    """What a command says inside a machine."""
    async with asyncio.timeout(WITHIN):
        connection = await login(await available(machines, vm))
        async with connection:
            done = await connection.run(command, check=True)
    return str(done.stdout).strip()
