"""The guard of a fenced machine. A plain program stands for QEMU."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness import pace
from qemu_scene import PATIENCE, SLEEP, eventually, machine_of, now

from hostler.drivers.machines.qemu import dead_mans_switch, pid_lookup, process
from hostler.drivers.machines.qemu.folder import ALIVE, LOG, MachineFolder, NodeFolder
from hostler.drivers.machines.qemu.pid_lookup import Run
from hostler.errors import Unavailable
from hostler.kit.clock import boot_id
from hostler.testing import servers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@pytest.fixture
def place(tmp_path: Path) -> Iterator[NodeFolder]:
    with NodeFolder(tmp_path / "node") as opened:
        yield opened


@pytest.fixture
def folder(place: NodeFolder) -> Iterator[MachineFolder]:
    with machine_of(place) as made:
        yield made


def files_of(pid: int) -> Sequence[str]:
    where, found = Path(f"/proc/{pid}/fd"), []
    for name in os.listdir(where):
        with suppress(FileNotFoundError):  # it was just closed
            found.append(os.readlink(where / name).rpartition("/")[2])
    return sorted(found)


def parent_of(run: Run) -> int:
    return pid_lookup.ProcessInfo.at(run.pid).parent


async def started_and_told(run: Run) -> None:
    """Until the program itself runs, so that the kernel was told to end it with its guard."""
    await eventually(lambda: Path(f"/proc/{run.pid}/comm").read_text() == "sleep\n")


async def guarded(place: NodeFolder, folder: MachineFolder) -> Run:
    place.hold(now() + 600)
    run = await process.spawn(folder, SLEEP, hold=place.hold_path)
    await started_and_told(run)
    return run


async def test_a_guarded_machine_ends_when_its_hold_does(place: NodeFolder, folder: MachineFolder) -> None:
    run = await guarded(place, folder)
    place.hold(now() + 0.2)
    until = dead_mans_switch.held_until(str(place.hold_path), boot_id())
    assert until is not None
    async with asyncio.timeout(PATIENCE):
        await process.wait_until_ended(folder, run)
    assert now() >= until


@pytest.mark.slow
async def test_a_hold_that_is_renewed_goes_on_and_one_that_is_shortened_is_over(
    place: NodeFolder, folder: MachineFolder
) -> None:
    run = await guarded(place, folder)
    short = pace.patience(0.25)  # a guard that has read it must be able to read the next one before it is over
    place.hold(now() + short)
    place.hold(now() + 600)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(short + 0.25):
            await process.wait_until_ended(folder, run)
    place.hold(0)
    async with asyncio.timeout(PATIENCE):
        await process.wait_until_ended(folder, run)


@pytest.mark.parametrize("what", ["missing", "torn", "of another boot"])
async def test_a_hold_that_cannot_be_believed_is_none(place: NodeFolder, folder: MachineFolder, what: str) -> None:
    run = await guarded(place, folder)
    match what:
        case "missing":
            place.hold_path.unlink()
        case "torn":
            place.hold_path.write_text(place.hold_path.read_text()[:-3])
        case _:
            place.hold_path.write_text(dead_mans_switch.hold_text("another", now() + 600))
    async with asyncio.timeout(PATIENCE):
        await process.wait_until_ended(folder, run)


async def test_what_is_not_held_does_not_start(place: NodeFolder, folder: MachineFolder) -> None:
    for _ in range(2):
        with pytest.raises(Unavailable, match="fenced and not held"):
            await process.spawn(folder, ["touch", "started"], hold=place.hold_path)
        await process.wait_until_ended(folder)
        assert not (folder.path / "started").exists()
        place.hold(now() - 1)


async def test_whoever_kills_the_guard_kills_the_machine(place: NodeFolder, folder: MachineFolder) -> None:
    run = await guarded(place, folder)
    os.kill(parent_of(run), signal.SIGKILL)
    async with asyncio.timeout(PATIENCE):
        await process.wait_until_ended(folder, run)


async def test_a_machine_whose_guard_died_before_the_kernel_knew_of_it_does_not_start(tmp_path: Path) -> None:
    marker = tmp_path / "started"
    argv = [*dead_mans_switch.WITH_GUARD, "touch", str(marker)]
    for parent, starts in ((os.getpid() + 1, False), (os.getpid(), True)):
        subprocess.run(argv, env={**os.environ, "GUARD_PID": str(parent)}, check=False)
        assert marker.exists() is starts


async def test_the_guard_does_not_hear_polite_signals_and_its_machine_does(
    place: NodeFolder, folder: MachineFolder
) -> None:
    run = await guarded(place, folder)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(parent_of(run), number)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await process.wait_until_ended(folder, run)
    os.kill(run.pid, signal.SIGTERM)
    async with asyncio.timeout(PATIENCE):
        await process.wait_until_ended(folder, run)


async def test_the_guard_ends_with_its_machine(place: NodeFolder, folder: MachineFolder) -> None:
    run = await guarded(place, folder)
    guard_pid = parent_of(run)
    os.kill(run.pid, signal.SIGKILL)
    async with asyncio.timeout(PATIENCE):
        await process.wait_until_ended(folder, run)
    assert not Path(f"/proc/{guard_pid}").exists()


# What may stop the guard itself: a file that blocks, a stopped process. The machine ends by what the guard read last.

WITHOUT_POSIX_TIMERS = (
    "import runpy, sys, time; sys.modules['ctypes'] = None; del time.CLOCK_BOOTTIME;"
    " sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
)


@pytest.fixture(params=["POSIX timer", "interval timer"])
def timer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the guard kills. The interval timer is for hosts without CLOCK_BOOTTIME or without POSIX timers."""
    if request.param == "interval timer":
        command = (sys.executable, "-I", "-S", "-c", WITHOUT_POSIX_TIMERS, dead_mans_switch.__file__)
        monkeypatch.setattr(process, "_GUARD", command)
    return str(request.param)


def timer_now(timer: str) -> float:
    return now() if timer == "POSIX timer" else time.clock_gettime(time.CLOCK_MONOTONIC)


async def hold_and_await_read(place: NodeFolder, run: Run, until: float) -> None:
    """Hold, and return when the guard has read it."""
    place.hold(until)
    await asyncio.to_thread(place.hold_path.read_text)
    reads = looks_of(run)
    await eventually(lambda: looks_of(run) >= reads + 2)


def looks_of(run: Run) -> int:
    """How many system calls of reading the guard has made."""
    lines = Path(f"/proc/{parent_of(run)}/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["syscr"])


async def test_a_guard_that_cannot_read_its_hold_kills_in_time(
    place: NodeFolder, folder: MachineFolder, timer: str
) -> None:
    run = await guarded(place, folder)
    until = timer_now(timer) + pace.patience(0.5)
    await hold_and_await_read(place, run, until)
    blocking = place.path / "blocking"
    os.mkfifo(blocking)
    blocking.replace(place.hold_path)
    async with asyncio.timeout(PATIENCE):
        await process.wait_until_ended(folder, run)
    pace.check(timer_now(timer) - until, 0.3, since=time.monotonic() - 1.0, what="the end after the hold")
    assert timer_now(timer) >= until


async def test_a_guard_that_is_stopped_kills_before_anything_else(
    place: NodeFolder, folder: MachineFolder, timer: str
) -> None:
    run = await guarded(place, folder)
    guard_pid, until = parent_of(run), timer_now(timer) + pace.patience(0.5)
    await hold_and_await_read(place, run, until)
    servers.suspend(guard_pid)
    place.hold(timer_now(timer) + 600)  # too late: it has not been read
    with pidfd(run.pid) as machine:
        if timer == "interval timer":
            await eventually(lambda: timer_now(timer) > until + dead_mans_switch.GRACE)
            os.kill(guard_pid, signal.SIGCONT)
        async with asyncio.timeout(PATIENCE):
            await pid_lookup.readable(machine)
    if timer == "POSIX timer":  # it was not continued
        pace.check(now() - until, 0.3, since=time.monotonic() - 1.0, what="the end after the hold")


async def test_a_guard_whose_parent_is_stopped_kills_in_time(place: NodeFolder) -> None:
    place.hold(now() + 600)
    command = [
        sys.executable,
        "-I",
        "-S",
        dead_mans_switch.__file__,
        str(place.hold_path),
        "1",
        "",
        *dead_mans_switch.WITH_GUARD,
        *SLEEP,
    ]
    script = "import subprocess, sys; subprocess.Popen(sys.argv[1:]); sys.stdin.read()"
    heard, report = os.pipe2(os.O_CLOEXEC)
    parent = subprocess.Popen(
        [sys.executable, "-c", script, *command], stdin=subprocess.PIPE, stdout=report, start_new_session=True
    )
    try:
        pid = int((await asyncio.to_thread(os.read, heard, 4096)).split()[0])
        with pidfd(pid) as machine:
            servers.suspend(parent.pid)
            until = now() + 0.3
            place.hold(until)
            async with asyncio.timeout(PATIENCE):
                await pid_lookup.readable(machine)
        pace.check(now() - until, 0.3, since=time.monotonic() - 1.0, what="the end after the hold")
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.communicate()
        os.close(heard)
        os.close(report)


async def test_the_guards_timer_counts_the_time_in_which_the_host_is_suspended(
    place: NodeFolder, folder: MachineFolder
) -> None:
    run = await guarded(place, folder)
    timers = Path(f"/proc/{parent_of(run)}/timers").read_text()
    assert f"ClockID: {time.CLOCK_BOOTTIME}" in timers
    assert f"signal: {int(signal.SIGKILL)}/" in timers


@contextmanager
def pidfd(pid: int) -> Iterator[int]:
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("known", [True, False])
async def test_a_guard_that_is_suspended_is_killed_too(place: NodeFolder, folder: MachineFolder, known: bool) -> None:
    run = await guarded(place, folder)
    servers.suspend(parent_of(run))
    await process.kill(folder, run if known else None, within=PATIENCE)
    assert not process.alive(folder)


async def test_the_machine_is_told_from_its_guard(place: NodeFolder, folder: MachineFolder) -> None:
    run = await guarded(place, folder)
    found = process.find(folder)
    assert found is not None
    with found:
        assert found.run() == run


async def test_the_guard_keeps_no_file_that_is_the_machines_and_shows_no_secret(
    place: NodeFolder, folder: MachineFolder, tmp_path: Path
) -> None:
    place.hold(now() + 600)
    with (tmp_path / "tap").open("w") as tap:
        run = await process.spawn(folder, SLEEP, hold=place.hold_path, pass_fds=[tap.fileno()])
    await started_and_told(run)
    assert files_of(run.pid) == sorted(["null", LOG, LOG, ALIVE, "tap"])
    kept = sorted(["null", LOG, LOG, ALIVE, "anon_inode:[pidfd]"])
    await eventually(lambda: files_of(parent_of(run)) == kept)  # what it reports through is closed a moment later
    words = Path(f"/proc/{parent_of(run)}/cmdline").read_bytes().decode().split("\0")
    assert words[:4] == [sys.executable, "-I", "-S", dead_mans_switch.__file__]
    assert words[4] == "../../hold"


async def test_a_guard_that_says_nothing_sensible_leaves_nothing(
    place: NodeFolder, folder: MachineFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.hold(now() + 600)
    monkeypatch.setattr(process, "_GUARD", ("sh", "-c", "echo broken; exit 3"))
    with pytest.raises(Unavailable, match="broken"):
        await process.spawn(folder, SLEEP, hold=place.hold_path)
    assert not process.alive(folder)


async def test_a_guard_that_says_nothing_at_all_is_ended(
    place: NodeFolder, folder: MachineFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.hold(now() + 600)
    monkeypatch.setattr(process, "_GUARD", ("sh", "-c", "exec sleep 600"))
    monkeypatch.setattr(process, "GUARD_WITHIN", 0.05)
    with pytest.raises(Unavailable, match="did not report within"):
        await process.spawn(folder, SLEEP, hold=place.hold_path)
    assert not process.alive(folder)


async def test_cancelled_while_the_guard_starts_it_leaves_no_process(place: NodeFolder, folder: MachineFolder) -> None:
    place.hold(now() + 600)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await process.spawn(folder, SLEEP, hold=place.hold_path)
    assert not process.alive(folder)
    assert set(os.listdir("/proc/self/fd")) <= before
    await guarded(place, folder)
