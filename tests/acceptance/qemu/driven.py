"""Machines as an agent has them: made by the driver, and logged into."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncssh
import tiny_image

from hostler.drivers.machines.qemu import QemuMachines, QemuOptions
from hostler.drivers.machines.qemu.acceleration import verdict
from hostler.drivers.machines.qemu.rights import users_here
from hostler.model.vm import Step, VmSpec
from hostler.ports.machines import Label, MachinePlan

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from hostler.drivers.machines.qemu import ImageFolder
    from hostler.ports.machines import Machine, Machines

WITHIN = 150.0
"""For what a quiet machine does in some seconds."""
KEY = asyncssh.generate_private_key("ssh-ed25519")
SPEC = VmSpec(cpus=1, memory_mib=128, ssh_keys=(KEY.export_public_key().decode().strip(),))


def plan(vm: str, *, fenced: bool = False, **changes: Any) -> MachinePlan:
    spec = {name: getattr(SPEC, name) for name in SPEC.__struct_fields__ if name != "unknown"}
    return MachinePlan(label=Label("o", "p", vm), spec=VmSpec(**(spec | changes)), name=vm, fenced=fenced)


@asynccontextmanager
async def driver(
    folder: Path, images: ImageFolder, step: Callable[[str], Awaitable[None]] | None = None, **options: Any
) -> AsyncIterator[QemuMachines]:
    """An open driver, with the accelerator that works here."""
    if "accelerator" not in options:
        found = await verdict(tiny_image.FOLDER.parent, images.files(tiny_image.NAME), uids=users_here(None))
        options["accelerator"] = found.accelerator
    async with QemuMachines(folder, images=images, options=QemuOptions(**options), step=step) as machines:
        try:
            yield machines
        except BaseException:  # a test that failed leaves no machine to the next one
            for machine in await machines.list():
                await machines.delete(machine.label.vm)
            raise


async def until(machines: Machines, vm: str, is_so: Callable[[Machine], bool], within: float = WITHIN) -> Machine:
    """The machine, once it is so."""
    seen: Machine | None = None
    try:
        async with asyncio.timeout(within):
            while True:
                seen = await machines.inspect(vm)
                assert seen is not None, f"{vm}: it is gone"
                if is_so(seen):
                    return seen
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"{vm}: it is still {seen}") from None


def is_available(machine: Machine) -> bool:
    return machine.readiness is not None and machine.readiness.step is Step.AVAILABLE


async def run(machines: Machines, vm: str, command: str, *, check: bool = True) -> str:
    """What a command says inside a machine, once that is available."""
    access = (await until(machines, vm, is_available)).access
    assert access is not None
    known = asyncssh.import_known_hosts("".join(f"* {key}\n" for key in access.host_keys))
    async with (
        asyncio.timeout(WITHIN),
        asyncssh.connect(
            access.host, access.port, username=access.user, client_keys=[KEY], known_hosts=known, config=None,
            agent_path=None,
        ) as connection,
    ):  # fmt: skip
        done = await connection.run(command, check=check)
    return str(done.stdout).strip()
