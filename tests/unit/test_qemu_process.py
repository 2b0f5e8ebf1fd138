"""A machine's folder, its process and its guard. Plain programs stand for QEMU."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from hostler.drivers.machines.qemu import guard, process
from hostler.drivers.machines.qemu.folder import ALIVE, LOG, MachineFolder, PlaceFolder, folder_name
from hostler.drivers.machines.qemu.process import Run
from hostler.errors import Closed, Conflict, Damaged, Invalid, Unavailable, Uncertain
from hostler.kit.clock import SystemClock, boot_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SLEEP = ["sleep", "600"]
PATIENCE = 30.0


@pytest.fixture
def place(tmp_path: Path) -> Iterator[PlaceFolder]:
    with PlaceFolder(tmp_path / "node") as opened:
        yield opened


@pytest.fixture
def folder(place: PlaceFolder) -> Iterator[MachineFolder]:
    made = place.machine("m")
    made.create()
    yield made
    for found in process._holders(made):
        with found:
            found.kill()
    deadline = time.monotonic() + PATIENCE
    while process.alive(made) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.reap()
    assert not process.alive(made)


async def eventually(true: object) -> None:
    assert callable(true)
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


def now() -> float:
    return SystemClock().now()


# Folders


@pytest.mark.parametrize("vm", ["a", "A.b_c-9", "x" * 64, "-drive"])
def test_a_plain_id_names_its_folder(vm: str) -> None:
    assert folder_name(vm) == vm


@pytest.mark.parametrize("vm", ["", ".", "..", ".hidden", "a/b", "../x", "a b", "a\n", "é", "x" * 65, "\0", "a,b=c"])
def test_any_other_id_gets_a_name_that_can_be_no_path_and_no_option(vm: str) -> None:
    name = folder_name(vm)
    assert len(name) == 65
    assert name.isalnum()
    assert name != folder_name(vm + "'")


def test_a_place_keeps_its_id_and_belongs_to_one(tmp_path: Path) -> None:
    first = PlaceFolder(tmp_path)
    with pytest.raises(Closed):
        _ = first.id
    with first, pytest.raises(Unavailable, match="another process has them open"):
        PlaceFolder(tmp_path).open()
    with PlaceFolder(tmp_path) as second:
        assert second.id == first.id


def test_a_place_that_is_damaged_says_so_and_one_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "place").write_text("{")
    for _ in range(2):  # and its lock is let go of
        with pytest.raises(Damaged, match="not what Hostler wrote"):
            PlaceFolder(tmp_path).open()
    with pytest.raises(Invalid, match="name a folder"):
        PlaceFolder(tmp_path / "place").open()


async def test_a_removed_folder_is_gone_at_once_and_what_a_crash_left_goes_with_the_next_open(
    place: PlaceFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = place.machine("one"), place.machine("a/b")
    for each in (one, two):
        each.create()
        (each.path / "sub").mkdir()
    assert [each.name for each in place.machines()] == ["one", folder_name("a/b")]
    await one.remove()
    await one.remove()
    assert not one.path.exists()
    with monkeypatch.context() as patch:
        patch.setattr("hostler.drivers.machines.qemu.folder._remove", lambda _: None)
        await two.remove()
    assert place.machines() == []
    assert list(place.machines_path.iterdir()) != []
    place.close()
    place.open()
    assert list(place.machines_path.iterdir()) == []


@pytest.mark.parametrize("trap", ["symlink", "dangling", "hard link", "pipe", "nobody"])
def test_a_file_of_ours_is_never_somebody_elses(folder: MachineFolder, tmp_path: Path, trap: str) -> None:
    victim, name = tmp_path / "victim", folder.path / LOG
    victim.write_text("precious")
    match trap:
        case "symlink":
            name.symlink_to(victim)
        case "dangling":
            name.symlink_to(tmp_path / "none")
        case "hard link":
            name.hardlink_to(victim)
        case "pipe":
            os.mkfifo(name)
    descriptor = folder.open_ours(LOG, os.O_WRONLY | os.O_APPEND | os.O_TRUNC)
    os.write(descriptor, b"said")
    os.close(descriptor)
    assert victim.read_text() == "precious"
    assert not (tmp_path / "none").exists()
    assert name.read_bytes() == b"said"
    assert name.stat().st_mode & 0o777 == 0o600


def test_what_qemu_said_is_one_printable_line(folder: MachineFolder) -> None:
    assert folder.said() == ""
    (folder.path / LOG).write_bytes(b"x" * 5000 + b"\n2026-01-02T03:04:05.6Z qemu: one\n\n\x1b[31mtwo\xff\n")
    said = folder.said()
    assert said.endswith("qemu: one;  [31mtwo\N{REPLACEMENT CHARACTER}")
    assert said.isprintable()
    assert len(said) <= 600


def test_a_hold_counts_until_its_end_and_only_if_it_is_whole_and_of_this_boot(place: PlaceFolder) -> None:
    assert not place.held(now())
    place.hold(now() + 100)
    assert place.held(now())
    assert not place.held(now() + 101)
    place.hold(now() + 1)
    assert not place.held(now() + 2)
    whole = guard.hold_text(boot_id(), now() + 100)
    for text in ("", *(whole[:length] for length in range(len(whole))), whole + "x", guard.hold_text("b", now() + 100)):
        place.hold_path.write_text(text)
        assert not place.held(now()), text
    for until in ("nan", "x", ""):
        place.hold_path.write_text(f"hold {boot_id()} {until} .\n")
        assert not place.held(0.0)
    place.hold_path.write_bytes(b"\xff\xfe")
    assert not place.held(now())
    place.hold_path.unlink()
    assert not place.held(now())
    place.hold_path.mkdir()
    assert not place.held(now())


# The process


async def test_it_lives_exactly_as_long_as_its_process(folder: MachineFolder) -> None:
    assert not process.alive(folder)
    assert process.find(folder) is None
    run = await process.spawn(folder, SLEEP)
    assert process.alive(folder)
    found = process.find(folder, run)
    assert found is not None
    with found:
        assert found.run() == run
    await process.kill(folder, run, within=PATIENCE)
    assert not process.alive(folder)
    assert process.find(folder, run) is None
    await process.kill(folder, run, within=PATIENCE)
    await process.ended(folder, run)
    assert not Path(f"/proc/{run.pid}").exists()  # reaped


async def test_who_started_it_holds_nothing_of_it(folder: MachineFolder) -> None:
    before = set(os.listdir("/proc/self/fd"))
    run = await process.spawn(folder, SLEEP)
    assert set(os.listdir("/proc/self/fd")) <= before | {str(folder.descriptor)}
    os.kill(run.pid, signal.SIGKILL)
    await eventually(lambda: not process.alive(folder))


async def test_it_has_its_own_session_no_other_file_and_no_secret(
    folder: MachineFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOSTLER_TOKEN", "secret")
    with (tmp_path / "other").open("w") as other, (tmp_path / "tap").open("w") as tap:
        os.set_inheritable(other.fileno(), True)
        run = await process.spawn(folder, ["sh", "-c", "env; umask; exec sleep 600"], pass_fds=[tap.fileno()])
        await eventually(lambda: Path(f"/proc/{run.pid}/comm").read_text() == "sleep\n")
        files = {os.readlink(f"/proc/{run.pid}/fd/{name}") for name in os.listdir(f"/proc/{run.pid}/fd")}
    assert files == {"/dev/null", str(folder.path / LOG), str(folder.path / ALIVE), str(tmp_path / "tap")}
    assert os.getsid(run.pid) == run.pid
    assert os.readlink(f"/proc/{run.pid}/cwd") == str(folder.path)
    assert "secret" not in folder.said()
    assert folder.said().endswith("0077")


async def test_what_it_said_in_its_last_run_is_forgotten_in_the_next(folder: MachineFolder) -> None:
    for word in ("one", "two"):
        run = await process.spawn(folder, ["sh", "-c", f"echo {word}"])
        await process.ended(folder, run)
        assert folder.said() == word


async def test_it_does_not_run_twice(folder: MachineFolder) -> None:
    run = await process.spawn(folder, SLEEP)
    with pytest.raises(Conflict, match="it runs already"):
        await process.spawn(folder, SLEEP)
    found = process.find(folder)
    assert found is not None
    with found:
        assert found.run() == run


async def test_a_look_at_the_lock_does_not_keep_it_from_starting(folder: MachineFolder) -> None:
    looking = os.open(folder.path / ALIVE, os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    asyncio.get_running_loop().call_later(0.05, os.close, looking)
    await process.spawn(folder, SLEEP)


async def test_what_cannot_be_run_leaves_nothing(folder: MachineFolder) -> None:
    for hold in (None, folder.path / "hold"):
        (folder.path / "hold").write_text(guard.hold_text(boot_id(), now() + 60))
        with pytest.raises(Unavailable, match="no-such-program.*cannot be run|cannot be run.*no-such-program"):
            await process.spawn(folder, ["no-such-program"], wrap=lambda _: ["no-such-program"], hold=hold)
        await process.ended(folder)


async def test_its_end_wakes_who_waits_though_nobody_has_reaped_it(folder: MachineFolder) -> None:
    run = await process.spawn(folder, SLEEP)
    waiting = asyncio.ensure_future(process.ended(folder, run))
    blind = asyncio.ensure_future(process.ended(folder))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    os.kill(run.pid, signal.SIGKILL)
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(waiting, blind)


async def test_a_zombie_has_ended(folder: MachineFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(process, "reap", lambda: None)
        run = await process.spawn(folder, SLEEP)
        os.kill(run.pid, signal.SIGKILL)
        await eventually(lambda: process._Look.at(run.pid).state == "Z")
        assert not process.alive(folder)
        await process.ended(folder, run)
        await process.kill(folder, run, within=PATIENCE)
        assert process._believed(folder, run) is None
        await process.spawn(folder, SLEEP)


async def test_who_waits_may_be_cancelled(folder: MachineFolder) -> None:
    run = await process.spawn(folder, SLEEP)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await process.ended(folder, run)
    assert len(os.listdir("/proc/self/fd")) == before
    assert process.alive(folder)


# Numbers that were given to somebody else


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(SLEEP, cwd=tmp_path)
    yield child
    child.kill()
    child.wait()


def lies(run: Run, stranger: int) -> Sequence[Run]:
    """What a state file may say after numbers were given to others."""
    started = process._Look.at(stranger).start_time
    return [
        Run(pid=stranger, start_time=run.start_time, boot_id=run.boot_id),
        Run(pid=stranger, start_time=started, boot_id=run.boot_id),  # right in all but the folder it works in
        Run(pid=run.pid, start_time=run.start_time + 1, boot_id=run.boot_id),
        Run(pid=run.pid, start_time=run.start_time, boot_id="another boot"),
        Run(pid=2**22 + 1, start_time=run.start_time, boot_id=run.boot_id),
    ]


async def test_a_number_that_is_somebody_elses_is_never_taken_for_the_machine(
    folder: MachineFolder, stranger: subprocess.Popen[bytes]
) -> None:
    run = await process.spawn(folder, SLEEP)
    for lie in lies(run, stranger.pid):
        assert process._believed(folder, lie) is None
        found = process.find(folder, lie)
        assert found is not None
        with found:
            assert found.run() == run
    for lie in lies(run, stranger.pid):
        await process.kill(folder, lie, within=PATIENCE)
        assert stranger.poll() is None
        assert not process.alive(folder)
        run = await process.spawn(folder, SLEEP)


async def test_who_works_in_the_folder_without_being_the_machine_is_left_alone(folder: MachineFolder) -> None:
    bystander = subprocess.Popen(SLEEP, cwd=folder.path)
    try:
        run = await process.spawn(folder, SLEEP)
        await process.kill(folder, within=PATIENCE)
        assert bystander.poll() is None
        assert process.find(folder, run) is None
    finally:
        bystander.kill()
        bystander.wait()


async def test_where_we_may_not_look_its_user_is_believed_and_nobody_else(
    folder: MachineFolder, monkeypatch: pytest.MonkeyPatch, stranger: subprocess.Popen[bytes]
) -> None:
    """As in a container without the right to look at processes of other users."""
    run = await process.spawn(folder, SLEEP)
    its_user = 1_900_000_000
    real = os.stat

    def stat(path: str | int, **options: int | None) -> os.stat_result:
        text = str(path)
        if text.startswith("/proc/") and text.endswith("/cwd"):
            raise PermissionError
        found = real(path, **options)  # type: ignore[arg-type]
        if path == folder.descriptor and isinstance(path, int):
            return os.stat_result([*found[:5], its_user, *found[6:]])
        if text == f"/proc/{run.pid}":
            return os.stat_result([*found[:4], its_user, *found[5:]])
        return found

    listed = os.listdir

    def listdir(path: str) -> list[str]:
        if path.startswith("/proc/"):
            raise PermissionError
        return listed(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", stat)
        patch.setattr(os, "listdir", listdir)
        assert process._believed(folder, lies(run, stranger.pid)[1]) is None
        for hint in (run, None):
            found = process.find(folder, hint)
            assert found is not None
            with found:
                assert found.pid == run.pid


async def test_a_run_survives_the_state_file(folder: MachineFolder) -> None:
    run = await process.spawn(folder, SLEEP)
    assert msgspec.json.decode(msgspec.json.encode(run), type=Run) == run


# The guard


def files_of(pid: int) -> Sequence[str]:
    where = f"/proc/{pid}/fd"
    return sorted(os.readlink(f"{where}/{name}").rpartition("/")[2] for name in os.listdir(where))


def parent_of(run: Run) -> int:
    return process._Look.at(run.pid).parent


async def started_and_told(run: Run) -> None:
    """Until the program itself runs, so that the kernel was told to end it with its guard."""
    await eventually(lambda: Path(f"/proc/{run.pid}/comm").read_text() == "sleep\n")


async def guarded(place: PlaceFolder, folder: MachineFolder) -> Run:
    place.hold(now() + 600)
    run = await process.spawn(folder, SLEEP, hold=place.hold_path)
    await started_and_told(run)
    return run


async def test_a_guarded_machine_ends_when_its_hold_does(place: PlaceFolder, folder: MachineFolder) -> None:
    run = await guarded(place, folder)
    place.hold(now() + 0.2)
    until = guard.held_until(str(place.hold_path), boot_id())
    assert until is not None
    async with asyncio.timeout(PATIENCE):
        await process.ended(folder, run)
    assert now() >= until


async def test_a_hold_that_is_renewed_goes_on_and_one_that_is_shortened_is_over(
    place: PlaceFolder, folder: MachineFolder
) -> None:
    run = await guarded(place, folder)
    place.hold(now() + 0.25)
    place.hold(now() + 600)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await process.ended(folder, run)
    place.hold(0)
    async with asyncio.timeout(PATIENCE):
        await process.ended(folder, run)


@pytest.mark.parametrize("what", ["missing", "torn", "of another boot"])
async def test_a_hold_that_cannot_be_believed_is_none(place: PlaceFolder, folder: MachineFolder, what: str) -> None:
    run = await guarded(place, folder)
    match what:
        case "missing":
            place.hold_path.unlink()
        case "torn":
            place.hold_path.write_text(place.hold_path.read_text()[:-3])
        case _:
            place.hold_path.write_text(guard.hold_text("another", now() + 600))
    async with asyncio.timeout(PATIENCE):
        await process.ended(folder, run)


async def test_what_is_not_held_does_not_start(place: PlaceFolder, folder: MachineFolder) -> None:
    for _ in range(2):
        with pytest.raises(Unavailable, match="fenced and not held"):
            await process.spawn(folder, ["touch", "started"], hold=place.hold_path)
        await process.ended(folder)
        assert not (folder.path / "started").exists()
        place.hold(now() - 1)


async def test_whoever_kills_the_guard_kills_the_machine(place: PlaceFolder, folder: MachineFolder) -> None:
    run = await guarded(place, folder)
    os.kill(parent_of(run), signal.SIGKILL)
    async with asyncio.timeout(PATIENCE):
        await process.ended(folder, run)


async def test_a_machine_whose_guard_died_before_the_kernel_knew_of_it_does_not_start(tmp_path: Path) -> None:
    marker = tmp_path / "started"
    argv = [*guard.WITH_GUARD, "touch", str(marker)]
    for parent, starts in ((os.getpid() + 1, False), (os.getpid(), True)):
        subprocess.run(argv, env={**os.environ, "HOSTLER_GUARD": str(parent)}, check=False)
        assert marker.exists() is starts


async def test_the_guard_does_not_hear_polite_signals_and_its_machine_does(
    place: PlaceFolder, folder: MachineFolder
) -> None:
    run = await guarded(place, folder)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(parent_of(run), number)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await process.ended(folder, run)
    os.kill(run.pid, signal.SIGTERM)
    async with asyncio.timeout(PATIENCE):
        await process.ended(folder, run)


async def test_the_guard_ends_with_its_machine(place: PlaceFolder, folder: MachineFolder) -> None:
    run = await guarded(place, folder)
    guard_pid = parent_of(run)
    os.kill(run.pid, signal.SIGKILL)
    async with asyncio.timeout(PATIENCE):
        await process.ended(folder, run)
    assert not Path(f"/proc/{guard_pid}").exists()


@pytest.mark.parametrize("known", [True, False])
async def test_a_guard_that_is_suspended_is_killed_too(place: PlaceFolder, folder: MachineFolder, known: bool) -> None:
    run = await guarded(place, folder)
    os.kill(parent_of(run), signal.SIGSTOP)
    await process.kill(folder, run if known else None, within=PATIENCE)
    assert not process.alive(folder)


async def test_the_machine_is_told_from_its_guard(place: PlaceFolder, folder: MachineFolder) -> None:
    run = await guarded(place, folder)
    found = process.find(folder)
    assert found is not None
    with found:
        assert found.run() == run


async def test_the_guard_keeps_no_file_that_is_the_machines_and_shows_no_secret(
    place: PlaceFolder, folder: MachineFolder, tmp_path: Path
) -> None:
    place.hold(now() + 600)
    with (tmp_path / "tap").open("w") as tap:
        run = await process.spawn(folder, SLEEP, hold=place.hold_path, pass_fds=[tap.fileno()])
    await started_and_told(run)
    assert files_of(run.pid) == sorted(["null", LOG, LOG, ALIVE, "tap"])
    kept = sorted(["null", LOG, LOG, ALIVE, "anon_inode:[pidfd]"])
    await eventually(lambda: files_of(parent_of(run)) == kept)  # what it reports through is closed a moment later
    words = Path(f"/proc/{parent_of(run)}/cmdline").read_bytes().decode().split("\0")
    assert words[:4] == [sys.executable, "-I", "-S", guard.__file__]
    assert words[4] == "../../hold"


async def test_a_guard_that_says_nothing_sensible_leaves_it_uncertain(
    place: PlaceFolder, folder: MachineFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.hold(now() + 600)
    monkeypatch.setattr(process, "_GUARD", ("sh", "-c", "echo broken; exit 3"))
    with pytest.raises(Uncertain, match="broken"):
        await process.spawn(folder, SLEEP, hold=place.hold_path)
    await process.ended(folder)


async def test_cancelled_while_the_guard_starts_it_is_known_by_its_lock(
    place: PlaceFolder, folder: MachineFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.hold(now() + 600)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await process.spawn(folder, SLEEP, hold=place.hold_path)
    assert process.alive(folder)
    assert len(os.listdir("/proc/self/fd")) == before
    await process.kill(folder, within=PATIENCE)
