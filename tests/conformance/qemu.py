"""What the suite of machine drivers must know of QEMU's, with the tiny guest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dose import dose
from guests import KEYS, WITHIN, run

from hostler.drivers.machines.qemu.driver import QemuMachines
from hostler.drivers.machines.qemu.options import QemuOptions
from hostler.model.vm import VmSpec
from hostler.testing import MachineSetup

if TYPE_CHECKING:
    from pathlib import Path

    from hostler.drivers.machines.qemu.images.folder import ImageFolder
    from hostler.ports.machines import Machines

SPEC = VmSpec(cpus=1, memory_mib=128, ssh_keys=KEYS)
OTHER_SPEC = VmSpec(cpus=2, memory_mib=160, ssh_keys=SPEC.ssh_keys, disk_gib=1)
BOOTS = """
now=$(cat /proc/sys/kernel/random/boot_id)
grep -qs "$now" boots || { echo "$now" >> boots; sync; }
wc -l < boots
"""


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
