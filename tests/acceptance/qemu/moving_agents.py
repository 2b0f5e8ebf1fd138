"""Two agents that hand a machine from one to the other, and are killed at a step of it.

moving FOLDER VM NUMBER STEP

They are one process here: both die at once, as on a host whose kernel kills them. Told no step, they live to the end.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from guest_login import plan
from warm_image import FOLDER, OPTIONS

from hostler.drivers.machines.qemu.driver import QemuMachines
from hostler.drivers.machines.qemu.images.folder import ImageFolder

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def killing(at: str) -> Callable[[str], Awaitable[None]]:
    async def step(name: str) -> None:
        if name == at:
            os.kill(os.getpid(), signal.SIGKILL)

    return step


async def move(folder: Path, vm: str, number: int, at: str) -> None:
    images = ImageFolder(FOLDER)
    async with (
        QemuMachines(folder / "here", images=images, options=OPTIONS, step=killing(at)) as here,
        QemuMachines(folder / "there", images=images, options=OPTIONS, step=killing(at)) as there,
    ):
        await there.receive(plan(vm), number)
        await here.send(vm, number, lambda door: there.channel(vm, door))


if __name__ == "__main__":
    _, folder, vm, number, at = sys.argv[1:]
    asyncio.run(move(Path(folder), vm, int(number), at))
