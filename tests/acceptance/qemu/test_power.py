"""Switching machines on and off, with a real QEMU whose disk is empty: whatever is cut off, nothing is lost."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from bare_guest import until
from qemu_opened import Opened, empty_images, plan

from hostler.drivers.machines.qemu import driver as driver_module
from hostler.drivers.machines.qemu import power, process, state
from hostler.drivers.machines.qemu.disk import Disk
from hostler.drivers.machines.qemu.serial import GuestChannel
from hostler.drivers.machines.qemu.snapshot import disk_now
from hostler.errors import HostlerError
from hostler.model.vm import MachineState, Step

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from hostler.drivers.machines.qemu import QemuMachines
    from hostler.drivers.machines.qemu.machine import QemuMachine

GIB = 2**30
WITHIN = 60.0
RUNNING, STOPPED = MachineState.RUNNING, MachineState.STOPPED


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Opened]:
    made = Opened(tmp_path / "node", await empty_images(tmp_path / "images"))
    yield made
    async with made() as machines:
        for machine in await machines.list():
            await machines.delete(machine.label.vm)


async def eventually(true: Callable[[], bool]) -> None:
    assert await until(true, WITHIN)


def of(machines: QemuMachines) -> QemuMachine:
    return machines._machines["a"]


def pid_of(machines: QemuMachines) -> int:
    run = of(machines).record.run
    assert run is not None
    return run.pid


async def test_a_start_that_is_cancelled_while_its_guard_starts_can_be_repeated(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened() as machines:
        await machines.hold(600)
        await machines.create(plan(fenced=True))
        with monkeypatch.context() as patch:
            patch.setattr(process, "_GUARD", ("sh", "-c", "exec sleep 600"))
            starting = asyncio.ensure_future(machines.start("a"))
            await eventually(lambda: process.alive(of(machines).folder))
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
        assert not process.alive(of(machines).folder)
        assert (await machines.inspect("a")).state is STOPPED  # type: ignore[union-attr]
        started = await machines.start("a")
        assert started.state is RUNNING
        assert started.readiness is not None
        assert started.readiness.step in (Step.BOOTING, Step.AVAILABLE)


async def test_memory_is_loaded_once_and_its_disk_keeps_its_size(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cut(_: Any) -> None:
        raise asyncio.CancelledError

    async with opened() as machines:
        await machines.create(plan())
        await machines.start("a")
        await machines.snapshot("a", "s")
        await machines.stop("a", grace=0)
        await machines.create(plan(disk_gib=1))
        await machines.restore("a", "s", 1)
        assert of(machines).record.resume == "s"
        with monkeypatch.context() as patch:  # cut off when its guest has gone on, and nobody has written that down
            patch.setattr(power, "tell_who", cut)
            with pytest.raises(asyncio.CancelledError):
                await machines.start("a")
        assert of(machines).status == "running"
        assert state.read(opened.of("a")).resume == "", "what the guest does now would be taken back"
        assert (await disk_now(of(machines)))["virtual-size"] == GIB
        await machines.stop("a", grace=0)

        # Loaded in vain, as when QEMU does not like it: it boots, and its disk is as large.
        await machines.restore("a", "s", 2)
        await of(machines).disk.revert(of(machines).record.snapshots["s"].tag)
        await machines.drop_snapshot("a", "s")
        assert Disk(opened.of("a"), "qcow2").virtual_bytes() < GIB
        await machines.start("a")
        assert (await disk_now(of(machines)))["virtual-size"] == GIB


async def test_an_agent_that_died_over_a_load_is_followed_by_one_that_goes_on(opened: Opened) -> None:
    async def die(step: str) -> None:
        if step == "start.spawned:after" and armed:
            raise asyncio.CancelledError

    armed = False
    async with opened(die) as machines:
        await machines.create(plan())
        await machines.start("a")
        await machines.snapshot("a", "s")
        await machines.stop("a", grace=0)
        await machines.create(plan(disk_gib=1))
        await machines.restore("a", "s", 1)
        armed = True
        with pytest.raises(asyncio.CancelledError):
            await machines.start("a")
        pid = pid_of(machines)
    async with opened() as machines:
        assert (await machines.start("a")).state is RUNNING
        assert pid_of(machines) == pid
        assert (await disk_now(of(machines)))["virtual-size"] == GIB
        assert of(machines).record.resume == ""


async def test_a_qemu_that_dies_while_it_is_connected_to_is_an_error_that_is_told(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = GuestChannel.connect

    async def connect_and_die(channel: GuestChannel, *arguments: Any) -> None:
        await connect(channel, *arguments)
        run = state.read(channel.folder.path).run
        assert run is not None
        os.kill(run.pid, signal.SIGKILL)
        await eventually(lambda: link[0].monitor is None)

    link: list[Any] = [None]
    async with opened() as machines:
        await machines.create(plan())
        link[0] = of(machines)._link
        with monkeypatch.context() as patch:
            patch.setattr(GuestChannel, "connect", connect_and_die)
            with pytest.raises(HostlerError):
                await machines.start("a")
        assert (await machines.start("a")).state is RUNNING
    with monkeypatch.context() as patch:  # found by the next agent, it dies under its hands
        patch.setattr(GuestChannel, "connect", connect_and_die)
        found = driver_module.QemuMachines._reconnect_to

        async def find(machines: QemuMachines, machine: QemuMachine) -> None:
            link[0] = machine._link
            await found(machines, machine)

        patch.setattr(driver_module.QemuMachines, "_reconnect_to", find)
        async with opened() as machines:
            await eventually(lambda: of(machines).state is MachineState.FAILED)
            patch.undo()
            assert (await machines.start("a")).state is RUNNING


async def test_a_start_that_waited_while_its_process_died_has_living_connections(opened: Opened) -> None:
    async with opened() as machines:
        await machines.create(plan())
        await machines.start("a")
        machine, pid = of(machines), pid_of(machines)
        async with machine.lock:
            starting = asyncio.ensure_future(machines.start("a"))
            await asyncio.sleep(0)  # it waits for the lock before whoever sees to the end of the process
            os.kill(pid, signal.SIGKILL)
            await eventually(lambda: not machine.alive)
        assert (await starting).state is RUNNING
        assert pid_of(machines) != pid
        link = machine._link
        assert link.serial is not None
        assert link.serial.connected
        assert link.guest is not None
        assert link.guest.connected
        await asyncio.sleep(0.2)
        assert link.guest is machine.guest, "what saw to the end of the last run has let this one be"
        assert machine.alive
