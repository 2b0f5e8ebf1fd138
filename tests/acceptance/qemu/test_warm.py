"""Machines that start from a saved state: fast, each as itself, and from cold when that cannot be."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from dose import dose, rotates
from guest_login import available, node, not_available, plan, run
from harness.pace import patience
from warm_image import CPUS, MEMORY_MIB, warm_images

from hostler.drivers.machines.qemu import saved_state
from hostler.errors import Refused
from hostler.model.vm import MachineState

if TYPE_CHECKING:
    from hostler.drivers.machines.qemu.driver import QemuMachines
    from hostler.drivers.machines.qemu.images.folder import ImageFolder

pytestmark = [pytest.mark.timeout(300), rotates(2, "src/hostler/drivers/machines/qemu")]
SAYS = (
    "hostname; cat /sys/class/net/eth0/address /proc/sys/kernel/random/boot_id;"
    " for i in 1 2 3; do od -An -v -tx1 -N16 /dev/urandom; cat /proc/sys/kernel/random/uuid; done"
)


@pytest.fixture(scope="module")
def images() -> ImageFolder:
    return warm_images()


async def was_warm(machines: QemuMachines, vm: str) -> bool:
    return saved_state.ARGUMENT in await run(machines, vm, "cat /proc/cmdline")


async def test_machines_from_one_saved_state_are_each_themselves(images: ImageFolder, tmp_path: Path) -> None:
    async with node(tmp_path, images) as machines:
        said, keys, addresses = [], [], []
        await machines.hold(600)
        for vm in ("one", "two"):
            await machines.create(plan(vm, fenced=vm == "two"))
            await machines.start(vm)
            said.append((await run(machines, vm, SAYS)).splitlines())
            access = await available(machines, vm)
            keys.append(access.host_keys)
            addresses.append(access.port)
            assert await was_warm(machines, vm)
            before, inside = time.time(), int(await run(machines, vm, "date +%s"))
            assert before - 2 < inside < time.time() + 2
        assert [lines[0] for lines in said] == ["one", "two"]
        both = [*said[0], *said[1]]
        assert len(set(both)) == len(both), "they share an address, an id or a random number"
        assert keys[0] != keys[1]
        assert addresses[0] != addresses[1]

        await run(machines, "one", "echo kept > file; sync")
        await machines.stop("one", grace=20)
        await machines.start("one")
        assert await run(machines, "one", "cat file") == "kept"
        assert await was_warm(machines, "one")
        await machines.reset("two", 1)
        await not_available(machines, "two")
        assert not await was_warm(machines, "two"), "a guest that restarts boots from its kernel"


async def test_a_state_that_cannot_be_used_costs_a_boot_and_no_more(
    images: ImageFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = saved_state.open_state

    def cut(folder: Path, shape: saved_state.SavedShape) -> int | None:
        descriptor = real(folder, shape)
        assert descriptor is not None
        half = tmp_path / "half"
        half.write_bytes(os.pread(descriptor, 9_000_000, 0))
        os.close(descriptor)
        return os.open(half, os.O_RDONLY | os.O_CLOEXEC)

    monkeypatch.setattr(saved_state, "open_state", cut)
    async with node(tmp_path / "node", images) as machines:
        await machines.create(plan("one"))
        with caplog.at_level(logging.WARNING, logger="hostler.qemu"):
            machine = await machines.start("one")
        assert "the saved state of its image cannot be used" in caplog.text
        assert machine.state is MachineState.RUNNING
        assert machine.detail == ""
        assert not await was_warm(machines, "one")


async def test_a_guest_that_does_not_wake_boots_anew(
    images: ImageFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hostler.drivers.machines.qemu import power
    from hostler.drivers.machines.qemu.serial import GuestChannel

    monkeypatch.setattr(power, "WAKES_WITHIN", 1.0)
    real = GuestChannel.send

    async def deaf(self: GuestChannel, text: str) -> None:
        if not text.startswith("go "):
            await real(self, text)

    monkeypatch.setattr(GuestChannel, "send", deaf)
    async with node(tmp_path, images) as machines:
        await machines.create(plan("one"))
        await machines.start("one")
        assert not await was_warm(machines, "one")
        assert "did not wake" in caplog.text


async def test_a_shape_that_is_not_kept_warm_boots(images: ImageFolder, tmp_path: Path) -> None:
    """Its process is told so; that a guest boots is seen by other tests."""
    async with node(tmp_path, images) as machines:
        await machines.create(plan("one", memory_mib=MEMORY_MIB + 1))
        assert (await machines.start("one")).state is MachineState.RUNNING
        (pid,) = working_in(tmp_path / "vms" / "one")
        words = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")
        assert "-kernel" in words
        assert "-incoming" not in words
        assert not any(saved_state.ARGUMENT in word for word in words)
        if dose(test=0, full=1):
            assert not await was_warm(machines, "one")


async def test_a_guest_that_has_too_little_memory_is_refused_at_once(images: ImageFolder) -> None:
    with pytest.raises(Refused, match="needs"):
        await images.warm("tiny", cpus=CPUS, memory_mib=32, progress=lambda *_: None)


MAKER = """
import asyncio, sys
sys.path[:0] = {paths!r}
from warm_image import FOLDER, OPTIONS
from hostler.drivers.machines.qemu.images.folder import ImageFolder
from hostler.drivers.machines.qemu.saved_state import warmer
images = ImageFolder(FOLDER, warmer=warmer(FOLDER, accelerator=OPTIONS.accelerator))
asyncio.run(images.warm("tiny", cpus=1, memory_mib=130, progress=lambda what, *_: print(what, flush=True)))
"""


async def test_who_is_killed_while_a_state_is_made_leaves_no_process_and_no_state(images: ImageFolder) -> None:
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    maker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", MAKER.format(paths=paths), stdout=asyncio.subprocess.PIPE
    )
    assert maker.stdout is not None
    assert await asyncio.wait_for(maker.stdout.readline(), patience(10)) == b"booting\n"
    place = images.find("tiny")[1] / "warm"
    async with asyncio.timeout(patience(10)):
        while not (found := [pid for folder in place.glob(".making-*") for pid in working_in(folder)]):
            await asyncio.sleep(0.02)
    maker.send_signal(signal.SIGKILL)
    await maker.wait()
    async with asyncio.timeout(patience(10)):
        while any(Path(f"/proc/{pid}/cwd").exists() for pid in found):
            await asyncio.sleep(0.02)
    assert not (place / "1x130").exists()
    with saved_state.making(place.parent):
        assert len(list(place.glob(".making-*.lock"))) == 1, "what it left is swept"


def working_in(folder: Path) -> list[int]:
    """Processes whose working directory it is."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if Path(os.readlink(entry / "cwd")) == folder:
                    found.append(int(entry.name))
            except OSError:  # it ended, or is none of ours
                continue
    return found
