"""Every claim of the machines suite, with real guests."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
import tiny_image

from hostler.drivers.machines.qemu.acceleration import verdict
from hostler.drivers.machines.qemu.rights import users_here
from hostler.testing import MachineClaim, machine_claims

from .qemu import SETUP, qemu

if TYPE_CHECKING:
    from hostler.drivers.machines.qemu.images.folder import ImageFolder


@pytest.fixture(scope="session")
def images() -> ImageFolder:
    return tiny_image.tiny_images()


@pytest.fixture(scope="session")
def accelerator(images: ImageFolder) -> str:
    """What guests run with here: tried once, for all folders."""
    found = verdict(tiny_image.FOLDER.parent, images.files(tiny_image.NAME), uids=users_here(None))
    return asyncio.run(found).accelerator


@pytest.mark.parametrize("claim", machine_claims(), ids=str)
async def test_claim(claim: MachineClaim, images: ImageFolder, accelerator: str, tmp_path: Path) -> None:
    setup = msgspec.structs.replace(SETUP, elsewhere=lambda: qemu(tmp_path / "elsewhere", images, accelerator))
    try:
        await claim.check(lambda: qemu(tmp_path / "node", images, accelerator), setup=setup)
    finally:
        left = processes_in(tmp_path)
    assert left == [], "processes are left"
    assert [str(path) for path in tmp_path.glob("*/vms/*")] == [], "files are left"


def processes_in(folder: Path) -> list[int]:
    """Those that work somewhere below a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                inside = Path(os.readlink(entry / "cwd")).is_relative_to(folder)
            except OSError:  # it ended, or is none of ours
                continue
            if inside:
                found.append(int(entry.name))
    return found
