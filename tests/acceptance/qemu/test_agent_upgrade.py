"""An agent that ends and is started anew under its machines: no guest notices, and nobody loses sight of one."""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import asyncssh
import pytest
from dose import dose
from harness.pace import patience
from real_plane import SOME, RealPlane, working_below
from up_process import HostlerProcess, token_told
from warm_image import warm_images

from hostler.client import Client
from hostler.model.vm import VmSpec
from hostler.model.vm_api import VmCreate, VmPhase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from hostler.model.vm_api import VmView

MACHINES = dose(test=4, full=10)
NODE = "r1-a"
KEY = asyncssh.generate_private_key("ssh-ed25519")
SPEC = VmSpec(cpus=1, memory_mib=128, ssh_keys=(KEY.export_public_key().decode().strip(),))
COUNT = "i=0; while :; do i=$((i+1)); read up rest < /proc/uptime; echo $i $up; usleep 200000; done"
BOOT = "cat /proc/sys/kernel/random/boot_id"
NODE_TTL = 5.0


class Fleet:
    """A replica that serves all the time, and the agent of one node, which comes and goes."""

    def __init__(self, folder: Path) -> None:
        self.plane = RealPlane(folder, warm_images())
        self._times = ("--node-ttl", NODE_TTL, "--fencing-time", 10)
        self._store = ("--store", f"sqlite://{self.plane.data}/store.db", "--data", self.plane.data)
        listen = ("--listen", "127.0.0.1:0", "--leadership-ttl", 5)
        self.replica = self._start("replica", *listen)
        self.replica.wait_for("leading with fence", patience(SOME))
        self.agent = self.new_agent()

    def _start(self, *arguments: object) -> HostlerProcess:
        words = (*arguments, *self._store, *self._times)
        return HostlerProcess(*words, folder=self.plane.folder, environ=self.plane.environ)

    def new_agent(self) -> HostlerProcess:
        """Another one, for the same node; it is there when this returns."""
        agent = self._start("agent", "--node", NODE, "--machines", "qemu")
        agent.wait_for("registered\n", patience(SOME))
        self.agent = agent
        return agent

    async def client(self) -> Client:
        token = token_told(self.replica.text)
        return Client(await self.replica.url("serving"), token)

    def processes(self) -> dict[int, str]:
        """Of machines, by when each was started: a number alone could be another's by now."""
        return {pid: started(pid) for pid in working_below(self.plane.data)}

    def end(self) -> None:
        self.agent.kill()
        self.replica.kill()
        self.plane.end()


def started(pid: int) -> str:
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        return file.read().rpartition(")")[2].split()[19]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path)
    try:
        yield fleet
    finally:
        fleet.end()


class Session:
    """Somebody who is logged in, straight to the machine's port, and counts."""

    def __init__(self, view: VmView, connection: asyncssh.SSHClientConnection) -> None:
        self.vm, self.connection = view.id, connection
        self.numbers: list[int] = []
        self.uptimes: list[float] = []

    async def count(self) -> None:
        async with self.connection.create_process(COUNT) as process:
            async for line in process.stdout:
                number, uptime = line.split()
                self.numbers.append(int(number))
                self.uptimes.append(float(uptime))
        raise AssertionError(f"{self.vm}: its session ended after {self.numbers[-1:]}")


async def logged_in(view: VmView) -> asyncssh.SSHClientConnection:
    access = view.access
    assert access is not None
    known = asyncssh.import_known_hosts("".join(f"* {key}\n" for key in access.host_keys))
    async with asyncio.timeout(patience(SOME)):
        return await asyncssh.connect(
            access.host, access.port, username=access.user, client_keys=[KEY], known_hosts=known, config=None,
            agent_path=None, keepalive_interval=0,
        )  # fmt: skip


async def until(is_so: Callable[[], bool], what: Callable[[], object]) -> None:
    end = time.monotonic() + patience(SOME)
    while not is_so():
        assert time.monotonic() < end, what()
        await asyncio.sleep(0.05)


async def all_are(client: Client, is_so: Callable[[VmView], bool]) -> dict[str, VmView]:
    """Every machine, once it is so of all of them."""
    end = time.monotonic() + patience(SOME)
    while True:
        views = {view.id: view for view in (await client.vms.list("default", "default", limit=100)).items}
        if all(map(is_so, views.values())):
            return views
        assert time.monotonic() < end, [
            (v.name, v.phase, v.detail, v.readiness) for v in views.values() if not is_so(v)
        ]
        await asyncio.sleep(0.05)


def well(view: VmView) -> bool:
    return view.phase is VmPhase.RUNNING and view.available and view.settled


async def heard_more(sessions: Sequence[Session], lines: int = 2) -> None:
    """Until everybody has counted on."""
    wanted = {session: len(session.numbers) + lines for session in sessions}
    await until(
        lambda: all(len(session.numbers) >= count for session, count in wanted.items()),
        lambda: [(session.vm, session.numbers[-1:]) for session in sessions],
    )


@pytest.mark.timeout(300)
async def test_no_guest_notices_that_its_agent_was_replaced(fleet: Fleet) -> None:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(await fleet.client())
        for number in range(MACHINES):
            await client.vms.create("default", "default", VmCreate(name=f"vm{number}", spec=SPEC))
        before = await all_are(client, well)
        assert len(before) == MACHINES
        sessions = []
        boots: dict[str, str] = {}
        counting = await stack.enter_async_context(asyncio.TaskGroup())
        tasks = []
        for view in before.values():
            connection = await logged_in(view)
            stack.callback(connection.abort)
            boots[view.id] = str((await connection.run(BOOT, check=True)).stdout)
            sessions.append(Session(view, connection))
            tasks.append(counting.create_task(sessions[-1].count()))
        assert len(set(boots.values())) == MACHINES
        await heard_more(sessions)
        processes = fleet.processes()
        assert len(processes) == MACHINES

        for number in (signal.SIGTERM, signal.SIGKILL):
            began, uptimes = time.monotonic(), {session.vm: session.uptimes[-1] for session in sessions}
            await replaced(fleet, number, sessions)
            now = await all_are(client, well)
            assert {vm: kept(view) for vm, view in now.items()} == {vm: kept(view) for vm, view in before.items()}
            assert fleet.processes() == processes, "each runs once, and is the one that it was"
            await heard_more(sessions)
            # A guest that had been held meanwhile would have missed that time.
            went = time.monotonic() - began
            for session in sessions:
                assert session.uptimes[-1] - uptimes[session.vm] > 0.7 * went - 2, session.vm
        for session in sessions:
            assert session.numbers == list(range(1, len(session.numbers) + 1)), session.vm
            assert all(one < other for one, other in itertools.pairwise(session.uptimes)), session.vm
            assert str((await session.connection.run(BOOT, check=True)).stdout) == boots[session.vm]
        for task in tasks:
            task.cancel()

        # The new agent has them in hand: one is reset, one is looked at, and all go when they shall.
        first, second, *_ = before
        await client.vms.reset("default", "default", first)
        await asyncio.gather(booted_again(client, first, boots[first]), typed_to(client, second))
        for vm in before:
            await client.vms.delete("default", "default", vm)
        await asyncio.gather(
            *(client.vms.wait("default", "default", vm, gone=True, within=patience(SOME)) for vm in before)
        )
        assert fleet.processes() == {}


async def replaced(fleet: Fleet, number: signal.Signals, sessions: Sequence[Session]) -> None:
    """The agent ends as told, is away while everybody counts on, and another one comes."""
    old = fleet.agent
    old.signal(number)
    await old.ends(patience(SOME))
    await heard_more(sessions)
    await asyncio.to_thread(fleet.new_agent)
    assert fleet.agent.pid != old.pid


def kept(view: VmView) -> object:
    """What of a machine must be the same before and after."""
    return view.name, view.node, view.address, view.access, view.readiness, view.detail, view.generation


async def booted_again(client: Client, vm: str, boot: str) -> None:
    end = time.monotonic() + patience(SOME)
    while True:
        (view,) = [view for view in (await all_are(client, well)).values() if view.id == vm]
        try:
            async with await logged_in(view) as connection:
                if str((await connection.run(BOOT, check=True)).stdout) != boot:
                    return
        except (OSError, asyncssh.Error):
            pass  # it is just being reset
        assert time.monotonic() < end, "it was not reset"
        await asyncio.sleep(0.05)


async def typed_to(client: Client, vm: str) -> None:
    heard = b""
    async with asyncio.timeout(patience(SOME)), client.vms.console("default", "default", vm) as console:
        await console.write(b"\recho $((6 * 7))th answer\r")
        while b"42th answer" not in heard:
            heard += await console.read()
