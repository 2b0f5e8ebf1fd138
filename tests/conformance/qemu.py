"""What the suite of machine drivers must know of QEMU's, with the tiny guest."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncssh
from dose import dose

from hostler.drivers.machines.qemu.driver import QemuMachines
from hostler.drivers.machines.qemu.options import QemuOptions
from hostler.model.vm import Step, VmSpec
from hostler.testing import MachineSetup

if TYPE_CHECKING:
    from pathlib import Path

    from hostler.drivers.machines.qemu.images.folder import ImageFolder
    from hostler.model.vm import Access
    from hostler.ports.machines import Machines

KEY = asyncssh.generate_private_key("ssh-ed25519")
SPEC = VmSpec(cpus=1, memory_mib=128, ssh_keys=(KEY.export_public_key().decode().strip(),))
OTHER_SPEC = VmSpec(cpus=2, memory_mib=160, ssh_keys=SPEC.ssh_keys, disk_gib=1)
WITHIN = 120.0
"""For what a quiet machine does in some five seconds."""
BOOTS = """
now=$(cat /proc/sys/kernel/random/boot_id)
grep -qs "$now" boots || { echo "$now" >> boots; sync; }
wc -l < boots
"""


async def available(machines: Machines, vm: str) -> Access:
    """Where a machine can be logged into, once it can."""
    async with asyncio.timeout(WITHIN):
        while True:
            machine = await machines.inspect(vm)
            assert machine is not None
            if machine.readiness is not None and machine.readiness.step is Step.AVAILABLE:
                assert machine.access is not None
                return machine.access
            await asyncio.sleep(0.05)


async def run(machines: Machines, vm: str, command: str) -> str:
    """What a command says inside a machine."""
    access = await available(machines, vm)
    known = asyncssh.import_known_hosts("".join(f"* {key}\n" for key in access.host_keys))
    async with (
        asyncio.timeout(WITHIN),
        asyncssh.connect(
            access.host,
            access.port,
            username=access.user,
            client_keys=[KEY],
            known_hosts=known,
            config=None,
            agent_path=None,
        ) as connection,
    ):
        done = await connection.run(command, check=True)
    return str(done.stdout).strip()


async def save(machines: Machines, vm: str, text: str) -> None:
    await run(machines, vm, f"echo {text} > text; sync")


async def show(machines: Machines, vm: str) -> str:
    return await run(machines, vm, "cat text 2>/dev/null || echo")


async def boots(machines: Machines, vm: str) -> int:
    return int(await run(machines, vm, BOOTS))


async def power_off(machines: Machines, vm: str) -> None:
    await run(machines, vm, "sudo poweroff > /dev/null 2>&1 &")


SETUP = MachineSetup(
    spec=SPEC,
    other_spec=OTHER_SPEC,
    unknown_image="no-such-image",
    within=WITHIN,
    grace=0.5,
    hold=1.0,
    late=2.0,
    points=dose(test=3, full=40),
    save=save,
    show=show,
    boots=boots,
    power_off=power_off,
)


def qemu(folder: Path, images: ImageFolder, accelerator: str) -> QemuMachines:
    return QemuMachines(folder, images=images, options=QemuOptions(accelerator=accelerator))
