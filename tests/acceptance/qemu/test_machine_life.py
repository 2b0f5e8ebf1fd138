"""What becomes of a machine by itself, and who hears of it."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from apart import run_apart
from driven import driver, is_available, plan, run, until
from harness.pace import patience
from qemu_opened import Opened, empty_images
from qemu_opened import plan as empty_plan
from warm_image import OPTIONS, warm_images

from hostler.drivers.machines.qemu import driver as driver_module
from hostler.drivers.machines.qemu import saved_state, state
from hostler.errors import Damaged
from hostler.model.vm import MachineState, Origin, Step
from hostler.testing import servers

if TYPE_CHECKING:
    from hostler.drivers.machines.qemu import ImageFolder

RESTARTS = bytes.fromhex("b0fe e664 ebfa").ljust(510, b"\0") + b"\x55\xaa"
"""The first sector of a disk: resets the machine, as often as it is run."""
FAILED, RUNNING, STOPPED = MachineState.FAILED, MachineState.RUNNING, MachineState.STOPPED


@pytest.fixture(scope="module")
def images() -> ImageFolder:
    return warm_images()


def process_of(folder: Path, vm: str) -> int:
    run_now = state.read(folder / "vms" / vm).run
    assert run_now is not None
    return run_now.pid


@pytest.mark.timeout(300)
async def test_a_machine_lives_from_its_first_boot_to_its_end_and_says_what_happened(
    tmp_path: Path, images: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first start boots its kernel; later ones go on from the saved state."""
    folder = tmp_path / "node"
    told: list[str] = []
    async with driver(folder, images, accelerator=OPTIONS.accelerator) as machines:
        machines.listen(told.append)
        await machines.create(plan("a"))
        with monkeypatch.context() as patch:
            patch.setattr(saved_state, "open_state", lambda *_: None)
            started = await machines.start("a")
        assert started.readiness is not None
        assert started.readiness.step is Step.BOOTING
        await until(machines, "a", is_available)
        assert told, "that it is available is told"
        assert saved_state.ARGUMENT not in await run(machines, "a", "cat /proc/cmdline"), "it booted"
        await run(machines, "a", "echo first > text; sync")
        boot = await run(machines, "a", "cat /proc/sys/kernel/random/boot_id")
        await machines.snapshot("a", "s")
        await run(machines, "a", "echo second > text; sync")

        told.clear()
        os.kill(process_of(folder, "a"), signal.SIGKILL)
        broken = await until(machines, "a", lambda machine: machine.state is FAILED)
        assert "its process ended" in broken.detail
        assert told == ["a"]

        await machines.start("a")
        assert await run(machines, "a", "cat text") == "second"
        await run(machines, "a", "sudo poweroff", check=False)
        off = await until(machines, "a", lambda machine: machine.state is STOPPED)
        assert off.detail == "", "it was its own wish"

        await machines.restore("a", "s", 1)
        await machines.create(plan("clone", origin=Origin(vm="a", snapshot="s")))
        await machines.start("a")
        assert await run(machines, "a", "cat text") == "first"
        assert await run(machines, "a", "cat /proc/sys/kernel/random/boot_id") == boot, "it went on where it was"
        now = float(await run(machines, "a", "date +%s"))
        assert abs(now - machines.clock.wall()) < 30, "its clock was set"
        host_keys = (await until(machines, "a", is_available)).access
        await machines.delete("a")

        await machines.start("clone")
        assert (await run(machines, "clone", "cat text; hostname")).split() == ["first", "clone"]
        clone = (await until(machines, "clone", is_available)).access
        assert host_keys is not None
        assert clone is not None
        assert clone.host_keys != host_keys.host_keys
        assert (await machines.stop("clone", grace=60)).state is STOPPED
        await machines.delete("clone")
        assert list((folder / "vms").iterdir()) == []


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("images")
async def test_a_guest_whose_disk_is_full_is_paused_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    found = await run_apart(Path(__file__).parent / "full_disk_process.py", tmp_path, within=patience(30))
    assert "no space left" in found.pop("detail")
    assert "almost full" in found.pop("refuses")
    assert found == {
        "state": "running",
        "told": True,
        "still": True,
        "written": str(60 * 2**20),
        "detail after": "",
        "refuses after": "",
        "readable": "0",
    }


@pytest.mark.timeout(300)
async def test_a_guest_that_restarts_itself_for_ever_is_told_of(tmp_path: Path) -> None:
    """It is not restarted by us, and not hidden either. (That of a whole system: test_hostile.)"""
    opened = Opened(tmp_path / "node", await empty_images(tmp_path / "images", sector=RESTARTS))
    async with opened() as machines:
        await machines.create(empty_plan())
        await machines.start("a")
        machine = await until(machines, "a", lambda machine: machine.detail != "")
        assert machine.state is RUNNING
        assert "restarted itself 3 times" in machine.detail
        await machines.delete("a")


@pytest.mark.timeout(300)
async def test_a_guest_whose_process_does_not_answer_is_told_of(
    tmp_path: Path, images: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "REATTACH_WITHIN", 1.0)
    folder = tmp_path / "node"
    async with driver(folder, images, accelerator=OPTIONS.accelerator) as machines:
        await machines.create(plan("a"))
        await machines.start("a")
        await until(machines, "a", is_available)
    # One whose process is stopped hinders nobody who comes, and is seen again when it goes on.
    pid = process_of(folder, "a")
    servers.suspend(pid)
    try:
        async with driver(folder, images, accelerator=OPTIONS.accelerator) as machines:
            machine = await until(machines, "a", lambda machine: machine.detail != "")
            assert machine.state is RUNNING
            assert "does not answer" in machine.detail
            os.kill(pid, signal.SIGCONT)
            await until(machines, "a", lambda machine: machine.detail == "" and is_available(machine))
            # One that hears nothing at all is switched off.
            servers.suspend(pid)
            assert (await machines.stop("a", grace=1)).state is STOPPED
            await machines.delete("a")
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


async def test_a_folder_that_cannot_be_read_is_left_alone_though_its_process_runs(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    opened = Opened(folder, await empty_images(tmp_path / "images"))
    async with opened() as machines:
        await machines.create(empty_plan())
        await machines.start("a")
    kept = (folder / "vms" / "a" / state.FILE).read_bytes()
    pid = process_of(folder, "a")
    (folder / "vms" / "a" / state.FILE).write_bytes(b"torn")
    async with opened() as machines:
        for verb in (machines.inspect, machines.start, machines.delete):
            with pytest.raises(Damaged):
                await verb("a")
        os.kill(pid, 0)
    (folder / "vms" / "a" / state.FILE).write_bytes(kept)
    async with opened() as machines:
        assert (await machines.inspect("a")).state is RUNNING  # type: ignore[union-attr]
        await machines.delete("a")


async def test_a_process_that_nobody_wrote_down_is_found_and_told_of_like_any_other(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    opened = Opened(folder, await empty_images(tmp_path / "images"))

    async def die(step: str) -> None:
        if step == "start.spawned:after":
            raise asyncio.CancelledError

    async with opened(die) as machines:
        await machines.create(empty_plan())
        task = asyncio.create_task(machines.start("a"))
        await asyncio.wait([task])
    pid = process_of(folder, "a")
    record = state.read(folder / "vms" / "a")
    state.write(folder / "vms" / "a", msgspec.structs.replace(record, run=None))  # as if it had died one step earlier
    async with opened() as machines:
        assert (await machines.inspect("a")).state is MachineState.STARTING  # type: ignore[union-attr]
        assert (await machines.start("a")).state is RUNNING
        assert process_of(folder, "a") == pid
        os.kill(pid, signal.SIGKILL)
        broken = await until(machines, "a", lambda machine: machine.state is not RUNNING)
        assert broken.state is FAILED
        await machines.delete("a")
