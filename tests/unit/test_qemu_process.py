"""A machine's process. A plain program stands for QEMU."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from qemu_scene import PATIENCE, SLEEP, eventually, machine_of, now

from hostler.drivers.machines.qemu import dead_mans_switch, pid_lookup, process
from hostler.drivers.machines.qemu.folder import (
    ALIVE,
    GUEST_SOCKET,
    LOG,
    QMP_SOCKET,
    SERIAL_SOCKET,
    MachineFolder,
    NodeFolder,
)
from hostler.drivers.machines.qemu.pid_lookup import Run
from hostler.drivers.machines.qemu.privileges import own_files
from hostler.drivers.privileges import Privileges, rights_for, users_here
from hostler.errors import Conflict, Unavailable
from hostler.kit.clock import boot_id

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
    await process.wait_until_ended(folder, run)
    assert not Path(f"/proc/{run.pid}").exists()  # reaped


def test_the_folder_of_a_foreign_process_is_not_touched(
    folder: MachineFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be on a file system that does not answer."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    touched: list[object] = []
    stat = os.stat

    def noted(path: object, *args: object, **options: object) -> os.stat_result:
        touched.append(path)
        return stat(path, *args, **options)  # type: ignore[arg-type]

    with subprocess.Popen(SLEEP, cwd=elsewhere) as other:
        try:
            monkeypatch.setattr(os, "stat", noted)
            assert list(pid_lookup.holders(folder)) == []
        finally:
            monkeypatch.undo()
            other.kill()
    assert f"/proc/{other.pid}/cwd" not in touched


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
        # It has all its files, and no file of its loader, when it sleeps.
        await eventually(lambda: Path(f"/proc/{run.pid}/stat").read_text().split()[1:3] == ["(sleep)", "S"])
        files = {os.readlink(f"/proc/{run.pid}/fd/{name}") for name in os.listdir(f"/proc/{run.pid}/fd")}
    assert files == {"/dev/null", str(folder.path / LOG), str(folder.path / ALIVE), str(tmp_path / "tap")}
    assert os.getsid(run.pid) == run.pid
    assert os.readlink(f"/proc/{run.pid}/cwd") == str(folder.path)
    assert "secret" not in folder.said()
    assert folder.said().endswith("0077")


async def test_what_it_said_in_its_last_run_is_forgotten_in_the_next(folder: MachineFolder) -> None:
    for word in ("one", "two"):
        run = await process.spawn(folder, ["sh", "-c", f"echo {word}"])
        await process.wait_until_ended(folder, run)
        assert folder.said() == word


async def test_a_socket_of_the_last_run_is_not_mistaken_for_one_of_this(folder: MachineFolder) -> None:
    for name in (QMP_SOCKET, SERIAL_SOCKET, GUEST_SOCKET):
        (folder.path / name).touch()
    await process.spawn(folder, SLEEP)
    assert sorted(path.name for path in folder.path.iterdir()) == sorted([ALIVE, LOG])


async def test_it_does_not_run_twice(folder: MachineFolder) -> None:
    run = await process.spawn(folder, SLEEP)
    with pytest.raises(Conflict, match="already running"):
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
        (folder.path / "hold").write_text(dead_mans_switch.hold_text(boot_id(), now() + 60))
        with pytest.raises(Unavailable, match="no-such-program.*cannot be run|cannot be run.*no-such-program"):
            await process.spawn(folder, ["no-such-program"], wrap=lambda _: ["no-such-program"], hold=hold)
        await process.wait_until_ended(folder)


async def test_its_end_wakes_who_waits_though_nobody_has_reaped_it(folder: MachineFolder) -> None:
    run = await process.spawn(folder, SLEEP)
    waiting = asyncio.ensure_future(process.wait_until_ended(folder, run))
    blind = asyncio.ensure_future(process.wait_until_ended(folder))
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
        await eventually(lambda: pid_lookup.ProcessInfo.at(run.pid).state == "Z")
        assert not process.alive(folder)
        await process.wait_until_ended(folder, run)
        await process.kill(folder, run, within=PATIENCE)
        assert pid_lookup.process_of_run(folder, run) is None
        await process.spawn(folder, SLEEP)


async def test_who_waits_may_be_cancelled(folder: MachineFolder) -> None:
    run = await process.spawn(folder, SLEEP)
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await process.wait_until_ended(folder, run)
    assert set(os.listdir("/proc/self/fd")) <= before
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
    started = pid_lookup.ProcessInfo.at(stranger).start_time
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
        assert pid_lookup.process_of_run(folder, lie) is None
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

    listed, ended = os.listdir, "999999999"

    def listdir(path: str) -> list[str]:
        """The processes that run, and first one that has ended by the time that it is looked at."""
        if path.startswith("/proc/"):
            raise PermissionError
        return [ended, *listed(path)]

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", stat)
        patch.setattr(os, "listdir", listdir)
        assert pid_lookup.process_of_run(folder, lies(run, stranger.pid)[1]) is None
        for hint in (run, None):
            found = process.find(folder, hint)
            assert found is not None
            with found:
                assert found.pid == run.pid
        os.kill(run.pid, signal.SIGKILL)
        await eventually(lambda: pid_lookup.ProcessInfo.at(run.pid).state == "Z")
        assert pid_lookup.process_of_run(folder, run) is None


# One that a guest has taken over

FREE = """
import fcntl, os, sys
for name in os.listdir("/proc/self/fd"):
    if os.path.exists(f"/proc/self/fd/{name}") and os.path.samefile(f"/proc/self/fd/{name}", "alive"):
        fcntl.flock(int(name), fcntl.LOCK_UN)
os.chdir(sys.argv[1])
print("free", flush=True)
os.execvp("sleep", ["sleep", "600"])
"""
"""Lets go of the lock that says that it lives, and goes elsewhere."""


SYSTEM_PYTHON = Path("/usr/bin/python3")


async def escaped(folder: MachineFolder, to: str, uid: int | None = None) -> Run:
    def wrap(argv: list[str]) -> list[str]:
        return argv if uid is None else ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *argv]

    # The interpreter of the tests may be in a folder that only its owner can enter.
    python = sys.executable if uid is None or not SYSTEM_PYTHON.exists() else str(SYSTEM_PYTHON)
    run = await process.spawn(folder, [python, "-I", "-S", "-c", FREE, to], wrap=wrap)
    await eventually(lambda: folder.said() == "free" and Path(f"/proc/{run.pid}/comm").read_text() == "sleep\n")
    assert not process.alive(folder)
    return run


async def test_one_that_let_go_of_its_lock_is_killed_all_the_same(folder: MachineFolder) -> None:
    run = await escaped(folder, ".")
    await process.kill(folder, run, within=PATIENCE)
    assert not Path(f"/proc/{run.pid}").exists()


@pytest.fixture
def own_user(folder: MachineFolder) -> int:
    """A machine's own, which it has where we are root: what runs as we do is not told from us."""
    rights = rights_for(folder.path, "p", 1, users_here(None))
    own_files(rights, folder.path)
    if rights.uid is None:
        pytest.fail("machines have users of their own only under root: run the tests as root")
    return rights.uid


async def test_all_that_runs_as_its_user_is_killed_wherever_it_went(folder: MachineFolder, own_user: int) -> None:
    run = await escaped(folder, "/", own_user)
    other = subprocess.Popen(SLEEP, cwd="/", user=own_user, group=own_user)
    process._children[other.pid] = folder.path
    other.returncode = 0  # reaped as the machine's
    await process.kill(folder, uid=own_user, within=PATIENCE)
    for pid in (run.pid, other.pid):
        assert not Path(f"/proc/{pid}").exists()


async def test_another_machine_that_has_the_same_user_by_chance_is_left_alone(
    place: NodeFolder, folder: MachineFolder, own_user: int
) -> None:
    other = place.machine("other")
    other.create()
    own_files(Privileges(uid=own_user), other.path)
    theirs = subprocess.Popen(SLEEP, cwd=other.path, user=own_user, group=own_user)
    try:
        await process.kill(folder, uid=own_user, within=PATIENCE)
        assert theirs.poll() is None
    finally:
        theirs.kill()
        theirs.wait()


async def test_a_run_survives_the_state_file(folder: MachineFolder) -> None:
    run = await process.spawn(folder, SLEEP)
    assert msgspec.json.decode(msgspec.json.encode(run), type=Run) == run
