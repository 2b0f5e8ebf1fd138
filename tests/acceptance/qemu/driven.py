"""Machines as an agent has them: made by the driver, and logged into."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import tiny_image
from guests import KEY, KEYS, SOME, is_available, run, until

from hostler.drivers.machines.qemu import QemuMachines, QemuOptions
from hostler.drivers.machines.qemu.acceleration import verdict
from hostler.drivers.privileges import users_here
from hostler.model.vm import VmSpec
from hostler.ports.machines import Label, MachinePlan

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from hostler.drivers.machines.qemu import ImageFolder

__all__ = ["KEY", "SOME", "SPEC", "driver", "is_available", "plan", "run", "until"]
SPEC = VmSpec(cpus=1, memory_mib=128, ssh_keys=KEYS)


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
