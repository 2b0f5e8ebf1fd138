"""What becomes of a machine by itself, and who hears of it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from driven import driver, is_available, plan, run, until

from hostler.drivers.machines.qemu import state
from hostler.model.vm import MachineState, Origin, Step

if TYPE_CHECKING:
    from hostler.drivers.machines.qemu import ImageFolder

FAILED, RUNNING, STOPPED = MachineState.FAILED, MachineState.RUNNING, MachineState.STOPPED


def process_of(folder: Path, vm: str) -> int:
    run_now = state.read(folder / "vms" / vm).run
    assert run_now is not None
    return run_now.pid


@pytest.mark.timeout(900)
async def test_a_machine_lives_from_its_first_boot_to_its_end_and_says_what_happened(
    tmp_path: Path, images: ImageFolder
) -> None:
    folder = tmp_path / "node"
    told: list[str] = []
    async with driver(folder, images) as machines:
        machines.listen(told.append)
        await machines.create(plan("a"))
        started = await machines.start("a")
        assert started.readiness is None or started.readiness.step is Step.BOOTING
        await until(machines, "a", is_available)
        assert told, "that it is available is told"
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
