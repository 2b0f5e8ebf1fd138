"""The process of a machine with a real QEMU, which has no guest: it starts at once, and all but the guest is there."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from hostler.drivers.machines.qemu import pid_lookup, process
from hostler.drivers.machines.qemu.folder import MachineFolder, NodeFolder
from hostler.drivers.machines.qemu.pid_lookup import Run
from hostler.drivers.machines.qemu.privileges import own_files
from hostler.drivers.machines.qemu.qmp import Monitor
from hostler.drivers.machines.qemu.serial import GuestChannel, Serial
from hostler.drivers.privileges import Privileges, rights_for, users_here
from hostler.errors import Refused, Unavailable, Uncertain
from hostler.kit.clock import SystemClock
from hostler.testing import servers

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE = 60.0


def _socket(name: str, path: str) -> list[str]:
    return ["-chardev", f"socket,id={name},path={path},server=on,wait=off"]


QEMU = [
    "qemu-system-x86_64", "-M", "q35", "-m", "16", "-nodefaults", "-no-user-config", "-display", "none", "-S",
    "-no-shutdown", "-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
    *_socket("qmp", "qmp.sock"), "-mon", "chardev=qmp,mode=control",
    *_socket("console", "serial.sock"), "-serial", "chardev:console",
    *_socket("guest", "guest.sock"), "-serial", "chardev:guest",
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _there_is_qemu() -> None:
    if shutil.which(QEMU[0]) is None:
        pytest.fail(f"{QEMU[0]} is not there: install qemu-system-x86", pytrace=False)


@pytest.fixture
def place() -> Iterator[NodeFolder]:
    with tempfile.TemporaryDirectory(prefix="hostler-process-") as path, NodeFolder(path) as opened:
        yield opened


@pytest.fixture
def folder(place: NodeFolder) -> Iterator[MachineFolder]:
    made = place.machine("m")
    made.create()
    yield made
    deadline = time.monotonic() + PATIENCE
    while process.alive(made) or made.path in process._children.values():
        assert time.monotonic() < deadline
        for found in pid_lookup.holders(made):
            with found:
                found.kill()
        process.reap()
        time.sleep(0.01)
    made.close()


@pytest.fixture
def rights(place: NodeFolder, folder: MachineFolder) -> Privileges:
    """The least that can be had here: a user of its own, where we are root."""
    found = rights_for(folder.path, place.id, 1, users_here(None))
    own_files(found, folder.path)
    return found


class Told:
    """What a monitor's listeners were told."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.closed = asyncio.Event()
        self._stir = asyncio.Event()

    def event(self, name: str, _: dict[str, Any]) -> None:
        self.events.append(name)
        self._stir.set()

    async def until(self, name: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while name not in self.events:
                self._stir.clear()
                await self._stir.wait()

    def monitor(self, folder: MachineFolder) -> Monitor:
        return Monitor(folder, event=self.event, closed=self.closed.set)


def now() -> float:
    return SystemClock().now()


@pytest.mark.parametrize("fenced", [False, True])
async def test_a_real_qemu_is_started_with_the_least_rights_told_heard_and_ended(
    place: NodeFolder, folder: MachineFolder, rights: Privileges, fenced: bool
) -> None:
    place.hold(now() + 600)
    hold = place.hold_path if fenced else None
    run = await process.spawn(folder, QEMU, wrap=partial(rights.wrap, cpus=1), hold=hold)
    told = Told()
    monitor, console, guest = told.monitor(folder), Serial(folder), GuestChannel(folder)
    await monitor.connect(PATIENCE)
    await console.connect()
    await guest.connect()
    assert (await monitor.execute("query-status"))["status"] == "prelaunch"
    with pytest.raises(Refused, match="no-such-command"):
        await monitor.execute("no-such-command")
    await monitor.execute("cont")
    await told.until("RESUME")
    await monitor.execute("system_reset")
    await told.until("RESET")
    async with console.attach() as channel:
        await channel.write(b"x" * 8)
    await guest.send("ping")
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{run.pid}/status").read_text().splitlines() if ":" in line
    )
    assert status["NoNewPrivs"].strip() == "1"
    assert status["Seccomp"].strip() == "2"
    if rights.uid is not None:
        assert set(status["Uid"].split()) == {str(rights.uid)}
        assert int(status["CapBnd"], 16) == 0
    assert oct((folder.path / "qmp.sock").stat().st_mode & 0o077) == "0o0"
    assert await monitor.execute("quit") == {}
    await process.wait_until_ended(folder, run)
    await asyncio.wait_for(told.closed.wait(), PATIENCE)
    for each in (monitor, console, guest):
        await each.aclose()


async def test_the_kernel_ends_a_qemu_of_any_user_with_its_guard(
    place: NodeFolder, folder: MachineFolder, rights: Privileges
) -> None:
    place.hold(now() + 600)
    run = await process.spawn(folder, QEMU, wrap=rights.wrap, hold=place.hold_path)
    told = Told()
    monitor = told.monitor(folder)
    await monitor.connect(PATIENCE)
    guard = pid_lookup.ProcessInfo.at(run.pid).parent
    resident = int(Path(f"/proc/{guard}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    assert resident < 16 * 2**20, "a guard has grown: it is one more process for each fenced machine"
    os.kill(guard, signal.SIGKILL)
    async with asyncio.timeout(PATIENCE):
        await process.wait_until_ended(folder, run)
        await told.closed.wait()
    await monitor.aclose()


async def test_a_hold_that_is_renewed_in_time_never_ends_and_without_it_the_end_is_exact(
    place: NodeFolder, folder: MachineFolder, rights: Privileges
) -> None:
    place.hold(now() + 600)
    run = await process.spawn(folder, QEMU, wrap=rights.wrap, hold=place.hold_path)
    first = now() + 3
    place.hold(first)
    await asyncio.sleep(0.2)  # it is renewed long before, also where this process stands still for seconds
    place.hold(now() + 600)
    await asyncio.sleep(first - now() + 0.5)
    assert process.alive(folder)
    until = now() + 0.5
    place.hold(until)
    await process.wait_until_ended(folder, run)
    assert now() >= until


AGENT = """
import asyncio, sys
from pathlib import Path
import msgspec
from hostler.drivers.machines.qemu import pid_lookup, process
from hostler.drivers.machines.qemu.folder import MachineFolder

async def main(path, hold, *argv):
    run = await process.spawn(MachineFolder(Path(path)), argv, hold=Path(hold) if hold else None)
    print(msgspec.json.encode(run).decode(), flush=True)
    await asyncio.sleep(600)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("fenced", [False, True])
async def test_it_outlives_its_agent_and_the_next_one_finds_hears_and_ends_it(
    place: NodeFolder, folder: MachineFolder, fenced: bool
) -> None:
    place.hold(now() + 600)
    hold = str(place.hold_path) if fenced else ""
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", AGENT, str(folder.path), hold, *QEMU, stdout=subprocess.PIPE
    )
    assert agent.stdout is not None
    run = msgspec.json.decode(await agent.stdout.readline(), type=Run)
    agent.kill()
    await agent.wait()
    assert process.alive(folder)
    for hint in (run, None):
        found = process.find(folder, hint)
        assert found is not None
        with found:
            assert found.run() == run
    told = Told()
    monitor = told.monitor(folder)
    await monitor.connect(PATIENCE)
    ended = asyncio.ensure_future(process.wait_until_ended(folder, run))
    await asyncio.sleep(0.05)
    assert not ended.done()
    os.kill(run.pid, signal.SIGKILL)
    await asyncio.wait_for(ended, PATIENCE)
    await asyncio.wait_for(told.closed.wait(), PATIENCE)
    await monitor.aclose()


KILLED_IN_BETWEEN = """
import asyncio, os, signal, subprocess, sys
from hostler.drivers.machines.qemu import pid_lookup, process

class Popen:
    def __init__(self, argv, cwd, pass_fds, **_):
        if os.fork() == 0:
            agent = os.getppid()
            os.kill(agent, signal.SIGKILL)
            while os.getppid() == agent:
                pass
            for descriptor in pass_fds:
                os.set_inheritable(descriptor, True)
            os.setsid()
            os.chdir(cwd)
            os.execvp(argv[0], argv)
        signal.pause()

subprocess.Popen = Popen
"""


async def test_an_agent_killed_between_fork_and_exec_leaves_the_truth(folder: MachineFolder) -> None:
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED_IN_BETWEEN + AGENT, str(folder.path), "", *QEMU
    )
    assert await agent.wait() == -signal.SIGKILL
    assert process.alive(folder)
    monitor = Told().monitor(folder)
    await monitor.connect(PATIENCE)
    found = process.find(folder)
    assert found is not None
    found.close()
    await process.kill(folder, within=PATIENCE)
    await monitor.aclose()


async def test_a_qemu_that_hangs_is_said_to_and_can_be_left_and_ended(folder: MachineFolder) -> None:
    run = await process.spawn(folder, QEMU)
    monitor = Told().monitor(folder)
    await monitor.connect(PATIENCE)
    servers.suspend(run.pid)
    with pytest.raises(Unavailable, match="query-status"):
        await monitor.execute("query-status", within=0.1)
    with pytest.raises(Uncertain, match="cont"):
        await monitor.execute("cont", within=0.1)
    os.kill(run.pid, signal.SIGCONT)
    assert (await monitor.execute("query-status"))["running"] is True  # what was asked late was done, and is answered
    second = Told().monitor(folder)
    with pytest.raises(Unavailable, match="another client is connected"):
        await second.connect(0.5)
    servers.suspend(run.pid)
    async with asyncio.timeout(PATIENCE):
        await monitor.aclose()
        await process.kill(folder, run, within=PATIENCE)


async def test_a_qemu_that_cannot_start_says_why(folder: MachineFolder) -> None:
    await process.spawn(folder, [*QEMU, "-device", "no-such-device"])
    with pytest.raises(Unavailable, match="'no-such-device' is not a valid device model name"):
        await Told().monitor(folder).connect(PATIENCE)
    await process.wait_until_ended(folder)


async def test_jobs_are_done_and_their_failures_told(folder: MachineFolder) -> None:
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", folder.path / "disk.qcow2", "64M"], check=True)
    disk = "driver=qcow2,node-name=disk,file.driver=file,file.filename=disk.qcow2"
    await process.spawn(folder, [*QEMU, "-blockdev", disk, "-device", "virtio-blk-pci,drive=disk"])
    told = Told()
    monitor = told.monitor(folder)
    await monitor.connect(PATIENCE)
    save = {"tag": "s1", "vmstate": "disk", "devices": ["disk"]}
    await monitor.job("snapshot-save", save, PATIENCE)
    with pytest.raises(Refused, match="snapshot-save: .*s1.*"):
        await monitor.job("snapshot-save", save, PATIENCE)
    assert await monitor.execute("query-jobs") == []
    with pytest.raises(Uncertain):
        await monitor.job("snapshot-save", save | {"tag": "s2"}, 0.0)
    await monitor.settle_jobs(within=PATIENCE)
    assert await monitor.execute("query-jobs") == []
    await process.kill(folder, within=PATIENCE)
    await monitor.aclose()


PEERS = """
import asyncio, json, sys
from pathlib import Path

async def came(reader, writer):
    writer.write(b'{"QMP": {}}\\n')
    while line := await reader.readline():
        writer.write(json.dumps({"return": {}, "id": json.loads(line)["id"]}).encode() + b"\\n")

async def still(reader, writer):
    writer.write(b"booting\\n")
    await reader.read()

async def main(*folders):
    for folder in map(Path, folders):
        await asyncio.start_unix_server(came, folder / "qmp.sock")
        await asyncio.start_unix_server(still, folder / "serial.sock")
        await asyncio.start_unix_server(still, folder / "guest.sock")
    print("ready", flush=True)
    await asyncio.sleep(600)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_the_connections_of_fifty_machines_cost_the_agent_little_memory_and_no_task(place: NodeFolder) -> None:
    folders = [place.machine(f"m{number}") for number in range(52)]
    for folder in folders:
        folder.path.mkdir()
    peers = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PEERS, *(str(folder.path) for folder in folders), stdout=subprocess.PIPE
    )
    try:
        assert peers.stdout is not None
        assert await peers.stdout.readline() == b"ready\n"
        kept: list[Monitor | Serial | GuestChannel] = []
        told = Told()

        async def connect(folder: MachineFolder) -> None:
            made = told.monitor(folder), Serial(folder), GuestChannel(folder)
            for each in made:
                await each.connect(PATIENCE)
            for _ in range(20):
                await made[0].execute("query-status")
            await made[2].line("booting", within=PATIENCE)
            kept.extend(made)

        for folder in folders[:2]:
            await connect(folder)  # what is needed once
        tasks, before = len(asyncio.all_tasks()), _resident()
        for folder in folders[2:]:
            await connect(folder)
        await asyncio.sleep(0.3)
        assert len(asyncio.all_tasks()) == tasks
        assert (_resident() - before) / 50 < 100 * 1024
        for each in kept:
            await each.aclose()
    finally:
        peers.kill()
        await peers.wait()


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
