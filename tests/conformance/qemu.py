"""What the suite of machine drivers must know of QEMU's, with the tiny guest or with a disk that is empty."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import asyncssh
from dose import dose, rotation
from guests import KEYS, WITHIN, available, login
from harness import pace

from hostler.drivers.machines.qemu.driver import QemuMachines
from hostler.drivers.machines.qemu.options import QemuOptions
from hostler.model.vm import VmSpec
from hostler.testing import MachineSetup

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from hostler.drivers.machines.qemu.images.folder import ImageFolder
    from hostler.model.vm import Access
    from hostler.ports.machines import Machines

SPEC = VmSpec(cpus=1, memory_mib=128, ssh_keys=KEYS)
OTHER_SPEC = VmSpec(cpus=2, memory_mib=160, ssh_keys=SPEC.ssh_keys, disk_gib=1)
BOOTS = """
now=$(cat /proc/sys/kernel/random/boot_id)
grep -qs "$now" boots || { echo "$now" >> boots; sync; }
wc -l < boots
"""


class Guests:
    """Sessions inside guests. One is used for as long as it lasts: a login takes an emulated processor a while."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], asyncssh.SSHClientConnection] = {}

    async def save(self, machines: Machines, vm: str, text: str) -> None:
        await self._run(machines, vm, f"echo {text} > text; sync")

    async def show(self, machines: Machines, vm: str) -> str:
        return await self._run(machines, vm, "cat text 2>/dev/null || echo")

    async def boots(self, machines: Machines, vm: str) -> int:
        return int(await self._run(machines, vm, BOOTS))

    async def power_off(self, machines: Machines, vm: str) -> None:
        await self._run(machines, vm, "sudo poweroff > /dev/null 2>&1 &")

    async def aclose(self) -> None:
        while self._open:
            await _close(self._open.popitem()[1])

    async def _run(self, machines: Machines, vm: str, command: str) -> str:
        access = await available(machines, vm)
        if (access.host, access.port) in self._open:
            try:
                return await self._said(access, command)
            except (asyncssh.Error, OSError, TimeoutError):  # that guest has gone, and this is another
                await _close(self._open.pop((access.host, access.port)))
        self._open[access.host, access.port] = await login(access)
        return await self._said(access, command, within=WITHIN)

    async def _said(self, access: Access, command: str, within: float = 5.0) -> str:
        async with asyncio.timeout(within):
            done = await self._open[access.host, access.port].run(command, check=True)
        return str(done.stdout).strip()


async def _close(session: asyncssh.SSHClientConnection) -> None:
    session.abort()
    await session.wait_closed()


class NoGuests(Guests):
    """A claim that looks inside a machine needs a guest there."""

    async def _run(self, machines: Machines, vm: str, command: str) -> str:  # noqa: ARG002 - whatever it is
        raise AssertionError(f"{vm} has no guest, and the claim looks inside: name the claim in INSIDE")


@asynccontextmanager
async def setup(guests: Guests, elsewhere: QemuMachines) -> AsyncIterator[MachineSetup]:
    try:
        yield MachineSetup(
            spec=SPEC,
            other_spec=OTHER_SPEC,
            unknown_image="no-such-image",
            within=WITHIN,
            grace=0.5,
            hold=1.0,
            late=0.6,
            on_time=pace.check,
            points=dose(test=2, full=40),
            turn=rotation(),
            save=guests.save,
            show=guests.show,
            boots=guests.boots,
            power_off=guests.power_off,
            elsewhere=lambda: elsewhere,
        )
    finally:
        await guests.aclose()


def qemu(folder: Path, images: ImageFolder, accelerator: str) -> QemuMachines:
    return QemuMachines(folder, images=images, options=QemuOptions(accelerator=accelerator))
