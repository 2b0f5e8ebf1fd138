"""The Debian guest: built and booted for real. Minutes of work, so `make soak` does it and `make test` does not."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from dose import dose
from driven import driver, is_available, plan, run, until

from hostler.model.vm import MachineState

if TYPE_CHECKING:
    from hostler.drivers.machines.qemu import ImageFolder

NAME = "debian-of-a-test"
WITHIN = 1200.0

if dose(test=0, full=1):

    @pytest.mark.timeout(5400)
    async def test_a_debian_guest_is_built_once_and_lives(tmp_path: Path, images: ImageFolder) -> None:
        before = time.monotonic()
        built = await images.build("debian", NAME, progress=lambda *_: None)
        took = time.monotonic() - before
        try:
            before = time.monotonic()
            again = await images.build("debian", NAME, progress=lambda *_: None)
            assert again.image == built.image
            assert time.monotonic() - before < took / 2, "there are no newer packages"
            async with driver(tmp_path / "node", images) as machines:
                await machines.create(plan("d", image=NAME, memory_mib=256, disk_gib=4, user="student"))
                await machines.start("d")
                await until(machines, "d", is_available, within=WITHIN)
                assert await run(machines, "d", "whoami; ls /home; hostname; sudo -n id -u") == "student\nstudent\nd\n0"
                size = int(await run(machines, "d", "df --output=size -k / | tail -n 1"))
                assert size > 3 * 2**20, "the file system has grown with the disk"
                assert "deb.debian.org" in await run(machines, "d", "cat /etc/apt/sources.list.d/*")
                assert await run(machines, "d", "ls /etc/apt/sources.list.d") == "debian.sources"
                assert await run(machines, "d", "systemctl --failed --no-legend") == ""
                await run(machines, "d", "echo kept > text; sync")
                assert (await machines.stop("d", grace=120)).state is MachineState.STOPPED
                await machines.start("d")
                await until(machines, "d", is_available, within=WITHIN)
                assert await run(machines, "d", "cat text") == "kept"
                await machines.delete("d")
        finally:
            await images.remove(NAME)
