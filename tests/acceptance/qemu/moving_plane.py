"""A control plane whose machines go from host to host: a replica, and two agents that share nothing but an etcd.

Each agent is a process with a data folder and images of its own, so what goes from one to the other goes through their
relays, with tickets.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

import running
from harness.artefacts import safe
from harness.pace import patience
from pausing_agent import PAUSES
from up_process import Done, HostlerProcess, hostler, token_told, until

from hostler import Client, open_store
from hostler.keys.families import ARRIVAL, COMMAND
from hostler.testing.servers import EtcdServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.drivers.machines.qemu.images.folder import ImageFolder
    from hostler.model.vm_api import VmView

NODES = ("r1-a", "r1-b")
SOME = 20.0
"""Seconds for what takes some on a quiet machine: guests are emulated."""
TIMES = ("--node-ttl", 20, "--fencing-time", 40)
"""An agent that is started again has its node at once; nobody shall be taken for silent because two cores are busy."""
LEADERSHIP_TTL = 6
GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
"""What one reads of a process that has just ended."""


class MovingPlane:
    """All of it; when it is left, every process has ended, those of machines too.

    `environs`: what the agent of a node has in its environment beside the usual, from its next start on.
    """

    def __init__(self, folder: Path, images: ImageFolder, environs: dict[str, dict[str, str]] | None = None) -> None:
        self.folder, self.pauses = folder, folder / "pauses"
        self.pauses.mkdir()
        self._images, self.environs = images, environs or {}
        self._etcd = EtcdServer()
        self.replica: HostlerProcess
        self.agents: dict[str, HostlerProcess] = {}
        self.environ: dict[str, str] = {}
        """What a command needs to ask the replica."""

    async def __aenter__(self) -> Self:
        try:
            self._etcd.__enter__()
            running.PIDS.add(self._etcd.pid(0))
            self.start_replica()
            for node in NODES:
                shutil.copytree(
                    self._images.path,
                    self.data(node) / "images",
                    ignore=shutil.ignore_patterns("cache", "run", "*.draft", ".making-*"),
                )
                self.start_agent(node)
            for node in NODES:
                await self.agents[node].says("registered\n", patience(SOME))
            told = "the administrator's token is kept in "
            await self.replica.says(told, patience(SOME))
            self.environ = {
                "HOSTLER_TOKEN": token_told(self.replica.text),
                "XDG_STATE_HOME": str(self.folder / "state"),
            }
            await self.ask_replica()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in (*self.agents.values(), *filter(None, [getattr(self, "replica", None)])):
            process.kill()
        for _folder, pid in self.guests():
            with suppress(*GONE):
                os.kill(pid, signal.SIGKILL)
        self._etcd.stop()

    # Processes

    def data(self, node: str) -> Path:
        return self.folder / node

    def start_replica(self) -> None:
        where = ("--store", self._etcd.url, "--listen", "127.0.0.1:0", "--data", self.folder / "replica")
        self.replica = HostlerProcess(
            "replica", *where, "--leadership-ttl", LEADERSHIP_TTL, *TIMES, folder=self.folder,
            environ={"HOSTLER_LOCK_TTL": "3"},
        )  # fmt: skip
        running.PIDS.add(self.replica.pid)

    async def ask_replica(self) -> None:
        """From now on the one that runs now is asked."""
        self.environ["HOSTLER_SERVER"] = await self.replica.url("serving")

    def start_agent(self, node: str) -> None:
        environ = {PAUSES: str(self.pauses), "HOSTLER_ACCELERATOR": "tcg"} | self.environs.get(
            node, {}
        )  # as the warm images were made
        words = ("--node", node, "--machines", "qemu", "--store", self._etcd.url, "--data", self.data(node), *TIMES)
        script = Path(__file__).with_name("pausing_agent.py")
        self.agents[node] = HostlerProcess(
            "agent",
            *words,
            folder=self.folder,
            environ=environ,
            script=script,
        )
        running.PIDS.add(self.agents[node].pid)

    def said(self) -> str:
        """The last words of every process, and what was asked to wait."""
        processes = {"replica": self.replica, **self.agents}
        waits = sorted(path.name for path in self.pauses.iterdir())
        return "\n".join(f"--- {name}\n{process.tail(25)}" for name, process in processes.items()) + f"\n{waits}"

    # Pauses

    def pause_at(self, step: str) -> None:
        (self.pauses / f"{step}.reached").unlink(missing_ok=True)
        (self.pauses / step).touch()

    async def paused_at(self, step: str) -> None:
        reached = self.pauses / f"{step}.reached"
        await until(reached.exists, patience(SOME), lambda: f"nobody comes to {step}: {self.said()}")

    def go_on(self, step: str) -> None:
        (self.pauses / step).unlink()

    # What a user does and sees

    async def cli(self, *arguments: object, code: int = 0) -> Done:
        """A command, and how it must end."""
        done = await hostler(*arguments, within=patience(SOME), **self.environ)
        assert done.code == code, f"{arguments}: {done}\n{self.said()}"
        return done

    async def inside(self, vm: str, command: str) -> str:
        return (await self.cli("vm", "ssh", vm, command)).out.strip()

    def client(self) -> Client:
        return Client(self.environ["HOSTLER_SERVER"], self.environ["HOSTLER_TOKEN"])

    async def clear(self) -> None:
        """Leave no machine, and both nodes as they were at the beginning: for the next test."""
        for pause in self.pauses.iterdir():
            pause.unlink()
        async with self.client() as client:
            for node in NODES:
                await client.nodes.activate(node)
            there = [view.id async for view in client.vms.list("default", "default")]
            for vm in there:
                await client.vms.delete("default", "default", vm)
            for vm in there:
                await client.vms.wait("default", "default", vm, gone=True, within=patience(SOME))

    async def seen(self, vm: str, is_so: Callable[[VmView], bool]) -> VmView:
        """The machine as the API tells of it, once it is so."""
        end = time.monotonic() + patience(SOME)
        async with self.client() as client:
            while not is_so(view := await client.vms.get("default", "default", vm)):
                assert time.monotonic() < end, f"{vm}: it is still {view}\n{self.said()}"
                await asyncio.sleep(0.05)
        return view

    # What there is

    def there(self, node: str) -> list[str]:
        """Folders of machines on a node."""
        return sorted(path.name for path in (self.data(node) / "machines" / node / "vms").iterdir())

    def guests(self) -> list[tuple[Path, int]]:
        """Processes of machines: where, and the process."""
        found = []
        for name in filter(str.isdecimal, os.listdir("/proc")):
            with suppress(*GONE):
                where = Path(os.readlink(f"/proc/{name}/cwd").removesuffix(" (deleted)"))
                if where.is_relative_to(self.folder.resolve()) and where.parent.name == "vms":
                    found.append((where, int(name)))
        return found

    def process_on(self, node: str) -> int:
        """The one process of a machine there."""
        (found,) = [pid for where, pid in self.guests() if where.is_relative_to(self.data(node).resolve())]
        return found

    async def check_only_on(self, node: str, *vms: str) -> None:
        """These machines stand there; of them there is nothing on the other node, and no one is on the way."""
        (other,) = set(NODES) - {node}
        await until(
            lambda: not self.there(other) and self.there(node) == sorted(vms),
            patience(SOME),
            lambda: f"{self.there(other)} on {other}, {self.there(node)} on {node}: {self.said()}",
        )
        end = time.monotonic() + patience(SOME)
        async with open_store(self._etcd.url) as store:
            while True:  # the leader takes back what came to nothing once the agent has said so
                commands = (await store.range(COMMAND.prefix(), keys_only=True)).items
                arrivals = (await store.range(ARRIVAL.prefix(), keys_only=True)).items
                if len(commands) == len(vms) and not arrivals:
                    return
                assert time.monotonic() < end, f"{commands}, {arrivals}: {self.said()}"
                await asyncio.sleep(0.05)


class Watch:
    """Looks all the time: where a guest ran before it ran elsewhere, it never runs again.

    A guest that runs uses its processor, any other does not, so its processes are told apart without asking anybody.
    Those that lead the same life are of one folder's name; of two that both run, one has to be the older.
    """

    EVERY = 0.05
    RUN = 2e6
    """Nanoseconds: what waits for memory, or is stopped, never gets to 1e6; what runs has them after some looks."""

    def __init__(self, plane: MovingPlane) -> None:
        self._plane = plane
        self._had: dict[int, int] = {}
        self._order: dict[str, list[int]] = defaultdict(list)
        """Of each machine, the processes in which it ran, the last one last."""
        self.history: list[str] = []
        """Each time that one was seen to have run."""
        self._wrong: list[str] = []

    @property
    def ran(self) -> set[int]:
        """Processes that were seen to run a guest."""
        return {pid for order in self._order.values() for pid in order}

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        ended = self._task.done()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if kind is None:
            assert not ended, self._task
            self.check()

    def check(self) -> None:
        safe(not self._wrong, "; ".join(self._wrong), history=self.history)

    async def _watch(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(self.EVERY)

    def _look(self) -> None:
        for where, pid in self._plane.guests():
            had = run_time(pid)
            if had - self._had.get(pid, 0) < self.RUN:
                continue
            self._had[pid] = had
            self.history.append(f"{time.monotonic():.2f} {where} in process {pid}: {had / 1e6:.0f} ms")
            order = self._order[where.name]
            if pid in order[:-1]:
                self._wrong.append(f"{where} ran again in process {pid} after it had run in {order[-1]}")
            elif pid not in order:
                # What the others had until now may be from before: it is not held against them at the next look.
                self._had.update({other: run_time(other) for other in order})
                order.append(pid)


def run_time(pid: int) -> int:
    """Nanoseconds that a guest has had: those of the threads that are its processors."""
    total = 0
    with suppress(*GONE):
        for task in Path(f"/proc/{pid}/task").iterdir():
            if (task / "comm").read_text(encoding="utf-8").startswith("CPU "):
                total += int((task / "schedstat").read_text(encoding="ascii").split()[0])
    return total
