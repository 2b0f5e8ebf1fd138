"""The host's watchdog. A FIFO stands for the device and records what is written to it."""

from __future__ import annotations

import asyncio
import errno
import os
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from qemu_scene import eventually, machine_of, now

from hostler.drivers.machines.qemu import process
from hostler.drivers.machines.qemu.driver import QemuMachines
from hostler.drivers.machines.qemu.folder import NodeFolder
from hostler.drivers.machines.simulated import SimulatedMachines
from hostler.drivers.watchdog import GET_TIMEOUT, WatchdogDevice
from hostler.entry import process as entry_process
from hostler.entry.doctor.host import watchdog as examined
from hostler.errors import Invalid, Unavailable
from hostler.kit.clock import SystemClock
from hostler.ports.machine_driver import Level
from hostler.ports.machines import OverdueFences, ability
from hostler.settings import Settings, load

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

TOML = 'machines = "qemu"\nnode_ttl = 2\nfencing_time = 4'


class Device:
    """The reading end of the stand-in, and the timeout that it has."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path, self.timeout, self.asked = path, 1, 0
        self.data = b""
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def ioctl(self, _: int, request: int, data: bytes) -> bytes:
        if request != GET_TIMEOUT:
            self.asked = struct.unpack("i", data)[0]
            raise OSError(errno.EOPNOTSUPP, "one time only")
        return struct.pack("i", self.timeout)

    def read(self) -> bytes:
        with suppress(BlockingIOError):
            self.data += os.read(self._descriptor, 4096)
        return self.data

    def close(self) -> None:
        os.close(self._descriptor)


class Fenced:
    """Machines, some of which may run past their hold."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.error: Unavailable | None = None
        self.asked = 0

    async def overdue(self, late: float) -> Sequence[str]:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.found if late > 0 else ()


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    made = Device(tmp_path / "watchdog")

    def opened(path: Path, *, timeout: float) -> WatchdogDevice:
        return WatchdogDevice(path, timeout=timeout, ioctl=made.ioctl)

    monkeypatch.setattr(entry_process, "open_watchdog", opened)
    monkeypatch.setattr(entry_process, "FEEDS", 100)  # every 10 ms
    yield made
    made.close()


@pytest.fixture
def settings(device: Device) -> Settings:
    return load({}, {}, toml=f"{TOML}\nwatchdog = {str(device.path)!r}")


def watched(settings: Settings, machines: Any, told: list[str] | None = None) -> Any:
    return entry_process.watched_host(settings, [machines], SystemClock(), [].append if told is None else told.append)


async def test_it_is_fed_while_all_is_well_and_disarmed_at_an_orderly_end(device: Device, settings: Settings) -> None:
    async with watched(settings, Fenced()):
        await eventually(lambda: len(device.read()) > 2)
        assert set(device.data) == {0}
    assert device.read().endswith(b"\0V")
    assert device.asked == 4  # the fencing time


async def test_it_is_not_disarmed_when_the_process_fails(device: Device, settings: Settings) -> None:
    async def fail() -> None:
        async with watched(settings, Fenced()):
            await eventually(lambda: bool(device.read()))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert b"V" not in device.read()


@pytest.mark.parametrize("what", ["overdue", "unknown", "hanging"])
async def test_it_is_not_fed_while_a_fenced_machine_may_run_past_its_hold(
    device: Device, settings: Settings, what: str
) -> None:
    machines, told = Fenced(), list[str]()
    async with watched(settings, machines, told):
        await eventually(lambda: bool(device.read()))
        match what:
            case "overdue":
                machines.found = ["m1"]
            case "unknown":
                machines.error = Unavailable("the disk hangs")
            case _:
                machines.overdue = asyncio.Event().wait  # type: ignore[assignment, method-assign]
        await asyncio.sleep(0.02)
        fed, asked = len(device.read()), machines.asked
        await eventually(lambda: what == "hanging" or machines.asked > asked + 3)
        assert len(device.read()) == fed
        if what == "hanging":
            return
        assert len(told) == 2
        assert ("m1" if what == "overdue" else "the disk hangs") in told[1]
        machines.found, machines.error = [], None
        await eventually(lambda: len(device.read()) > fed)


async def test_without_the_setting_nothing_is_opened(device: Device) -> None:
    async with watched(load({}, {}, toml=TOML), Fenced()):
        pass
    assert device.read() == b""


async def test_a_device_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        settings = load({}, {}, toml=f"{TOML}\nwatchdog = {str(path)!r}")
        with pytest.raises(Unavailable, match=r"cannot be opened: .*remove `watchdog` from"):
            async with watched(settings, Fenced()):
                pass


async def test_a_device_that_is_too_slow_or_has_no_known_time_is_refused_and_disarmed(
    device: Device, settings: Settings
) -> None:
    for timeout, why in ((7, "started elsewhere after 6 s"), (0, "does not report its timeout")):
        device.timeout, device.data = timeout, b""
        with pytest.raises(Unavailable, match=why):
            async with watched(settings, Fenced()):
                pass
        assert device.read() == b"V"


async def test_machines_that_are_not_fenced_by_the_host_have_no_watchdog(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="has nothing to guard"):
        async with watched(settings, object()):
            pass
    assert ability(SimulatedMachines, OverdueFences) is None


async def test_qemu_tells_which_fenced_machines_run_past_their_hold(tmp_path: Path) -> None:
    with NodeFolder(tmp_path / "node") as place, machine_of(place) as folder:
        machines = QemuMachines(place.path, images=None)  # type: ignore[arg-type]
        run = await process.spawn(folder, ["sleep", "600"])  # a guard that failed
        for until, fenced, found in ((60, True, ()), (-1, True, ()), (-9, True, ("m",)), (-9, False, ())):
            place.hold(now() + until)
            standin: Any = type(
                "Machine", (), {"vm": "m", "folder": folder, "record": type("R", (), {"fenced": fenced})}
            )
            assert machines._overdue([standin], now() - 3.0) == found
        await process.kill(folder, run, within=30)
        place.hold(now() - 9)
        assert machines._overdue([standin], now() - 3.0) == ()


def test_the_doctor_looks_at_the_device_without_opening_it(device: Device, tmp_path: Path) -> None:
    def level(path: str) -> Level:
        [found] = examined(load({}, {}, toml=f"{TOML}\nwatchdog = {path!r}"))
        return found.level

    assert examined(load({}, {}, toml=TOML)) == []
    assert level(str(tmp_path / "missing")) is Level.FAIL
    assert level(str(device.path)) is Level.FAIL
    assert level("/dev/null") is Level.OK
    assert device.read() == b""
