"""Drivers of QEMU machines whose image is an empty disk: all but a guest is there."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

from hostler.drivers.machines.qemu import ImageFolder, QemuMachines, QemuOptions
from hostler.model.image import Probe, Seeding
from hostler.model.vm import VmSpec
from hostler.ports.machines import Label, MachinePlan

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path


async def empty_images(path: Path, seeding: Seeding = Seeding.NONE, *, sector: bytes = b"") -> ImageFolder:
    """An image `tiny` without a system. `sector`: the first of its disk, which its machines run."""
    folder = ImageFolder(path)
    async with folder.scratch() as scratch:
        subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", "disk", "1M"], cwd=scratch.path, check=True)
        if sector:
            (scratch.path / "raw").write_bytes(sector.ljust(2**20, b"\0"))
            subprocess.run(["qemu-img", "convert", "-O", "qcow2", "raw", "disk"], cwd=scratch.path, check=True)
            (scratch.path / "raw").unlink()
        fields = {"disk_bytes": 2**20, "user": "u", "seeding": seeding, "probe": Probe.NONE, "source": "a test"}
        await folder.register("tiny", scratch, fields | {"memory_mib": 64})
    return folder


def plan(vm: str = "a", *, fenced: bool = False, **changes: Any) -> MachinePlan:
    spec: dict[str, Any] = {"cpus": 1, "memory_mib": 128}
    return MachinePlan(label=Label("o", "p", vm), spec=VmSpec(**(spec | changes)), name="n", fenced=fenced)


class Opened:
    """Drivers of one place, one after the other."""

    def __init__(self, folder: Path, images: ImageFolder) -> None:
        self.folder, self.images = folder, images

    def __call__(self, step: Callable[[str], Awaitable[None]] | None = None, **options: Any) -> QemuMachines:
        options = {"accelerator": "tcg", "network": "isolated"} | options
        return QemuMachines(self.folder, images=self.images, options=QemuOptions(**options), step=step)

    def of(self, vm: str) -> Path:
        return self.folder / "vms" / vm
