"""What the suite of machine drivers must know of QEMU's, with the tiny guest or with a disk that is empty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dose import dose, rotation
from guests import KEYS, WITHIN, run
from harness import pace
from msgspec.structs import replace

from hostler.drivers.machines.qemu.driver import QemuMachines
from hostler.drivers.machines.qemu.node_context import QemuOptions
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


async def no_guest(*_: object) -> Any:
    raise AssertionError("the claim looks inside, and there is no guest: name it in INSIDE")


GUEST = MachineSetup(
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
    save=save,
    show=show,
    boots=boots,
    power_off=power_off,
)
NO_GUEST = replace(GUEST, save=no_guest, show=no_guest, boots=no_guest, power_off=no_guest)
"""Of machines whose disk is empty: they can be looked at from outside alone."""


def qemu(folder: Path, images: ImageFolder, accelerator: str) -> QemuMachines:
    return QemuMachines(folder, images=images, options=QemuOptions(accelerator=accelerator))
