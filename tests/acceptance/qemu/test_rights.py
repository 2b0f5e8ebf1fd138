"""A guest's process has the least rights that the system allows; looked at from outside, and tried out from inside."""

from __future__ import annotations

import asyncio
import os
import subprocess
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from bare_guest import SANDBOX, until
from qemu.qmp import ConnectError, ExecuteError, QMPClient

from hostler.drivers.machines.qemu.privileges import own_files
from hostler.drivers.privileges import OPEN_FILES, Privileges, rights_for, users_here
from hostler.testing.servers import find_binary

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

WITHIN = 60.0


@asynccontextmanager
async def qemu(folder: Path, rights: Privileges) -> AsyncIterator[tuple[int, QMPClient]]:
    """A QEMU without a guest, with a disk, in that folder."""
    image = find_binary("qemu-img"), "create", "-q", "-f", "qcow2"
    subprocess.run([*image, folder / "disk.qcow2", "1M"], check=True)
    own_files(rights, folder)
    argv = [find_binary("qemu-system-x86_64"), "-S", "-M", "q35", "-accel", "tcg", "-m", "128", "-nodefaults"]
    argv += ["-no-user-config", "-display", "none", "-sandbox", SANDBOX, "-qmp", "unix:qmp.sock,server=on,wait=off"]
    process = subprocess.Popen(rights.wrap(argv), cwd=folder, stdin=subprocess.DEVNULL, start_new_session=True)
    client = QMPClient()
    held = os.open(folder, os.O_PATH)
    try:
        assert await until((folder / "qmp.sock").exists, WITHIN)
        async with asyncio.timeout(WITHIN):
            while True:
                try:
                    await client.connect(f"/proc/self/fd/{held}/qmp.sock")
                except ConnectError:  # the socket has a name, and QEMU does not listen yet
                    await asyncio.sleep(0.01)
                else:
                    break
        yield process.pid, client
        await client.disconnect()
    finally:
        os.close(held)
        process.kill()
        process.wait()


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Of two machines, below folders that only we can enter."""
    made = []
    for name in ("one", "two"):
        folder = tmp_path / "vms" / name
        folder.mkdir(parents=True, mode=0o700)
        (folder / "machine.json").write_text("{}")
        (folder / "machine.json").chmod(0o600)
        made.append(folder)
    (tmp_path / "token").write_text("secret")
    (tmp_path / "token").chmod(0o600)
    (tmp_path / "vms").chmod(0o700)
    tmp_path.chmod(0o700)
    return made[0], made[1]


async def test_the_process_runs_as_its_own_user_without_any_capability_in_a_sandbox(folders: tuple[Path, Path]) -> None:
    uids = users_here(None)
    rights = rights_for(folders[0], "place", 1, uids)
    async with qemu(folders[0], rights) as (pid, _):
        lines = dict(
            line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "\t" in line
        )
        limits = Path(f"/proc/{pid}/limits").read_text()
    assert lines["NoNewPrivs"] == "1"
    assert lines["Seccomp"] == "2"
    assert limits.split("Max core file size")[1].split()[:2] == ["0", "0"]
    assert int(limits.split("Max open files")[1].split()[0]) <= OPEN_FILES
    if uids is None:
        assert lines["Uid"].split() == [str(os.getuid())] * 4
        return
    assert rights.uid in uids
    assert lines["Uid"].split() == lines["Gid"].split() == [str(rights.uid)] * 4
    assert lines["Groups"].split() == []
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(lines[kind], 16) == 0, kind


async def test_a_process_that_was_taken_over_reads_its_own_disk_and_nobody_elses_files(
    folders: tuple[Path, Path],
) -> None:
    uids = users_here(None)
    if uids is None:  # without root machines run as we do, which the node says of itself
        assert rights_for(folders[0], "place", 1, uids) == Privileges()
        return
    first, second = (rights_for(folder, "place", number, uids) for number, folder in enumerate(folders, 1))
    subprocess.run(
        [find_binary("qemu-img"), "create", "-q", "-f", "qcow2", folders[1] / "disk.qcow2", "1M"], check=True
    )
    own_files(second, folders[1])
    async with qemu(folders[0], first) as (_, client):
        await _open(client, "disk.qcow2", read_only=False)
        outside = folders[0].parents[1]
        for path in ("../two/disk.qcow2", str(folders[1] / "disk.qcow2"), "../../token", str(outside / "token")):
            with pytest.raises(ExecuteError, match="Permission denied"):
                await _open(client, path, read_only=True)
        with pytest.raises(ExecuteError, match="Permission denied"):
            await _open(client, "machine.json", read_only=True)


async def test_a_process_that_was_taken_over_replaces_none_of_our_files(folders: tuple[Path, Path]) -> None:
    uids = users_here(None)
    if uids is None:  # without root machines run as we do, which the node says of itself
        assert rights_for(folders[0], "place", 1, uids) == Privileges()
        return
    folder = folders[0]
    rights = rights_for(folder, "place", 1, uids)
    own_files(rights, folder)
    for command in ("rm -f machine.json", "mv machine.json else", "ln -sf /etc/passwd machine.json"):
        done = subprocess.run(rights.wrap(["sh", "-c", command]), cwd=folder, capture_output=True, check=False)
        assert done.returncode != 0, command
    assert (folder / "machine.json").read_text() == "{}"
    subprocess.run(rights.wrap(["touch", "its.sock"]), cwd=folder, check=True)
    assert (folder / "its.sock").stat().st_uid == rights.uid


async def _open(client: QMPClient, path: str, *, read_only: bool) -> None:
    file = {"driver": "file", "node-name": "tried", "filename": path, "read-only": read_only}
    async with asyncio.timeout(WITHIN):
        await client.execute("blockdev-add", file)
        await client.execute("blockdev-del", {"node-name": "tried"})
