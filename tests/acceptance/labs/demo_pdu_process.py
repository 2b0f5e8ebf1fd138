"""Two racks with a real node each, a front end, Redis and etcd: the pdu of one rack fails, and its power comes back.

python demo_pdu_process.py FOLDER

Run it inside `unshare --net --mount --pid`: all that it makes ends with it. The last line it prints is what it found.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Self, TypeVar

import asyncssh
from guests import KEY, KEYS
from harness.pace import patience
from labman import LabMan, Server
from up_process import HostlerProcess, hostler, until
from warm_image import CPUS, FOLDER, MEMORY_MIB

from hostler.client import Client
from hostler.model.inventory_api import BladeView
from hostler.model.node import Lifecycle
from hostler.model.vm import OnNodeLoss, VmSpec
from hostler.model.vm_api import VmCreate, VmPhase, VmView
from hostler.testing.servers import EtcdServer, find_binary
from hostler.testing.ttl_servers import RedisServer

T = TypeVar("T")
PATIENCE = patience(30.0)
"""For what a quiet machine does in some seconds."""
DARK, LIT = "r1-b1", "r2-b1"
LAB, USER, HOST = 5, "ada", "lab-5-1"
TENANT = ("acme", "web")
TIMES = ("--node-ttl", 4, "--fencing-time", 8)
"""Nobody shall be taken for silent because two cores are busy."""
GRACE = 1
"""Seconds of silence before a node is switched off."""
RACKS = """
racks:
  - name: r1
    pdus: [{name: pdu1, ports: 2}]
    tors: [{name: tor1, ports: 2}]
    blades: {count: 1, cpus: 16, memory: 16GiB}
  - name: r2
    pdus: [{name: pdu1, ports: 2}]
    tors: [{name: tor1, ports: 2}]
    blades: {count: 1, cpus: 16, memory: 16GiB}
"""
LABS = f"""
[default]
image = "tiny"
cpus = {CPUS}
memory = "{MEMORY_MIB}M"
provider = "qemu"
ssh_keys = {json.dumps(KEYS)}
"""
POWER_OFF = """#!/bin/sh
# power-off NODE: there is no switch, so it is off once nothing of it runs any more.
for process in /proc/[0-9]*; do
    case "$(readlink $process/cwd) $(tr '\\0' ' ' < $process/cmdline)" in
        *"{folder}/$1"*) echo "process ${{process#/proc/}} of $1 runs"; exit 1 ;;
    esac
done 2> /dev/null
date +%s.%N > {folder}/off-$1
echo "nothing runs on $1"
"""


class Datacenter:
    """A replica, and two nodes that share nothing with it but an etcd. All is gone when it is left."""

    def __init__(self, folder: Path, redis: RedisServer, etcd: EtcdServer) -> None:
        self.folder, self._redis, self._etcd = folder.resolve(), redis, etcd
        self.replica: HostlerProcess
        self.agents: dict[str, HostlerProcess] = {}
        self._environ: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        (self.folder / "labs.toml").write_text(LABS)
        (self.folder / "racks.yaml").write_text(RACKS)
        off = self.folder / "power-off"
        off.write_text(POWER_OFF.format(folder=self.folder))
        off.chmod(0o700)
        where = ("--listen", "127.0.0.1:0", "--data", self.folder / "replica", "--store", self._etcd.url)
        self.replica = HostlerProcess(
            *("replica", *where, *TIMES),
            folder=self.folder,
            environ={
                "HOSTLER_REDIS": self._redis.url,
                "HOSTLER_LABS": str(self.folder / "labs.toml"),
                "HOSTLER_POWER_COMMAND": f"{off} {{node}}",
                "HOSTLER_POWER_GRACE": str(GRACE),
            },
        )
        try:
            self.start(DARK)
            await self.replica.says("leading with fence", PATIENCE)
            self._environ = {
                "HOSTLER_SERVER": await self.replica.url("serving"),
                "HOSTLER_TOKEN": (self.folder / "replica" / "admin.token").read_text().strip(),
            }
        except BaseException:
            await self.__aexit__(*sys.exc_info())
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            print(*(f"--- {path.name}\n{path.read_text()[-6000:]}" for path in self.folder.glob("*.out")), flush=True)
        for process in (self.replica, *self.agents.values()):
            process.kill()
        for _, _, pid in self.guests():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def start(self, node: str) -> HostlerProcess:
        """Its blade boots."""
        data = self.folder / node
        if not data.exists():
            ignored = shutil.ignore_patterns("cache", "run", "scratch", "parts", ".making-*")
            shutil.copytree(FOLDER, data / "images", ignore=ignored)
        self.agents[node] = HostlerProcess(
            *("agent", "--node", node, "--machines", "qemu", "--data", data, "--store", self._etcd.url, *TIMES),
            folder=self.folder,
            environ={
                "HOSTLER_ACCELERATOR": "tcg",  # as the warm images were made
                "HOSTLER_CPU_OVERCOMMIT": "16",  # machines of a test must all find room, however few cores there are
                "HOSTLER_NETWORK": "bridge",
            },
        )
        return self.agents[node]

    def cut_power(self, node: str) -> None:
        """All that runs on its blade is gone, and nobody there has a say in it."""
        self.agents[node].kill()
        for at, _, pid in self.guests():
            if at == node:
                with suppress(ProcessLookupError):  # a guest goes with its guard
                    os.kill(pid, signal.SIGKILL)

    def guests(self) -> list[tuple[str, str, int]]:
        """Processes of machines, and of their guards: node, machine, process."""
        found = []
        for name in filter(str.isdecimal, os.listdir("/proc")):
            with suppress(OSError):  # it has just ended
                where = Path(os.readlink(f"/proc/{name}/cwd"))
                if where.parent.name == "vms" and where.is_relative_to(self.folder):
                    found.append((where.relative_to(self.folder).parts[0], where.name, int(name)))
        return found

    def machines(self, node: str) -> list[str]:
        """What is left of machines on its disk."""
        return sorted(path.name for path in (self.folder / node).glob("machines/*/vms/*"))

    def switch_off(self, node: str) -> int:
        """What the operator's program answers."""
        return subprocess.run([self.folder / "power-off", node], capture_output=True, check=False).returncode

    def off_at(self, node: str) -> float:
        """When its power was found to be off; seconds since 1970."""
        return float((self.folder / f"off-{node}").read_text())

    async def cli(self, *arguments: object) -> str:
        """What a command says."""
        done = await hostler(*arguments, within=PATIENCE, **self._environ)
        assert done.code == 0, f"{arguments}: {done}"
        return done.out

    def client(self) -> Client:
        return Client(self._environ["HOSTLER_SERVER"], self._environ["HOSTLER_TOKEN"])


class Witness:
    """Looks all the time: no machine has processes on two nodes at once."""

    def __init__(self, datacenter: Datacenter) -> None:
        self._datacenter = datacenter
        self.first: dict[tuple[str, str], float] = {}
        """By machine and node: when it was first seen to have a process there; seconds since 1970."""
        self.twice: list[str] = []

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        ended = self._task.done()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        assert not ended, self._task

    async def _watch(self) -> None:
        while True:
            at: dict[str, str] = {}
            for node, vm, _ in self._datacenter.guests():
                self.first.setdefault((vm, node), time.time())
                if at.setdefault(vm, node) != node:
                    self.twice.append(f"{vm} on {node} and {at[vm]}")
            await asyncio.sleep(0.03)


async def logged_in(found: Server) -> str:
    """The name of the guest that answers at the address of a record."""
    usual: dict[str, Any] = {"client_keys": [KEY], "known_hosts": None, "config": None, "agent_path": None}
    usual |= {"username": found["user"], "server_host_key_algs": ["ssh-ed25519"]}
    async with asyncio.timeout(PATIENCE), asyncssh.connect(found["address"], **usual) as guest:
        return str((await guest.run("hostname", check=True)).stdout).strip()


async def found_by(look: Callable[[], Awaitable[T | None]]) -> T:
    """What it finds, once that is something."""
    async with asyncio.timeout(PATIENCE):
        while (found := await look()) is None:
            await asyncio.sleep(0.05)
    return found


async def main(folder: Path) -> dict[str, Any]:
    subprocess.run([find_binary("ip"), "link", "set", "lo", "up"], check=True)
    async with AsyncExitStack() as stack:
        redis, etcd = stack.enter_context(RedisServer()), stack.enter_context(EtcdServer())
        labman = await stack.enter_async_context(LabMan(redis.url, patience=PATIENCE))
        datacenter = await stack.enter_async_context(Datacenter(folder, redis, etcd))
        witness = await stack.enter_async_context(Witness(datacenter))
        client = await stack.enter_async_context(datacenter.client())
        story = Story(datacenter, witness, client, labman)
        await story.run()
        return story.told


class Story:
    """From two racks to the dark and back, and what was seen on the way."""

    def __init__(self, datacenter: Datacenter, witness: Witness, client: Client, labman: LabMan) -> None:
        self._datacenter, self._witness, self._client, self._labman = datacenter, witness, client, labman
        self._began = time.monotonic()
        self.told: dict[str, Any] = {"at": {}}
        self._web = self._lab = ""

    async def run(self) -> None:
        await self._started()
        before = await self._in_the_light()
        after = await self._in_the_dark()
        await self._back(after)
        self.told |= {"records": [before, after], "twice": self._witness.twice}

    def _at(self, what: str) -> None:
        """So many seconds after the beginning."""
        self.told["at"][what] = round(time.monotonic() - self._began, 1)

    async def _started(self) -> None:
        """One node, with a machine of a tenant who wants it fenced."""
        loaded = await self._datacenter.cli("inventory", "load", self._datacenter.folder / "racks.yaml", "--yes")
        assert "+ rack r1: 1 pdu, 1 tor, 1 blade" in loaded, loaded
        await self._datacenter.agents[DARK].says("registered\n", PATIENCE)
        spec = VmSpec(cpus=CPUS, memory_mib=MEMORY_MIB, image="tiny", ssh_keys=KEYS)
        wanted = VmCreate(name="www", spec=spec, on_node_loss=OnNodeLoss.RECREATE)
        self._web = (await self._client.vms.create(*TENANT, wanted)).id

    async def _in_the_light(self) -> Server:
        """A student gets a lab, which is there, too; then there is another node."""
        await self._labman.ask(USER, LAB)
        found = await self._labman.available(USER, LAB)
        assert await logged_in(found) == HOST
        self._lab = (await self._client.labs.get(USER)).vm or ""
        await self._web_runs()
        self._at("both run")
        assert {each[:2] for each in self._datacenter.guests()} == {(DARK, self._lab), (DARK, self._web)}
        await self._datacenter.start(LIT).says("registered\n", PATIENCE)
        await self._takes_machines("r2")
        self._at("there is another node")
        return found

    async def _in_the_dark(self) -> Server:
        """The pdu of the first one fails; until all is on the other one."""
        told, datacenter, first = self.told, self._datacenter, self._witness.first
        told["switched off while it runs"] = datacenter.switch_off(DARK)
        datacenter.cut_power(DARK)
        cut_at = time.time()
        self._at("the power is cut")
        await self._labman.until(USER, lambda found: found is not None and not found["available"])
        self._at("the record says so")
        found = await self._labman.available(USER, LAB)
        self._at("the lab is back")
        told["hostname"] = await logged_in(found)
        web = await self._web_runs()
        self._at("both run there")
        told["nodes"] = [web.node, (await self._client.vms.get("labs", USER, self._lab)).node]
        off_at = datacenter.off_at(DARK)
        told["in order"] = cut_at < off_at < min(first[self._lab, LIT], first[self._web, LIT])
        told["why"] = await datacenter.cli("why", f"lab/{USER}", "--limit", 200)
        told["why of the other"] = await datacenter.cli("why", f"vm/{'/'.join(TENANT)}/www")
        told["dark"] = await datacenter.cli("rack", "show", "r1")
        return found

    async def _back(self, record: Server) -> None:
        """There is power again: the node finds disks of machines that run elsewhere by now."""
        told, datacenter = self.told, self._datacenter
        running = sorted(datacenter.guests())
        assert datacenter.machines(DARK) == sorted((self._lab, self._web))
        await datacenter.start(DARK).says("registered\n", PATIENCE)
        await self._takes_machines("r1")
        await until(lambda: not datacenter.machines(DARK), PATIENCE, lambda: f"left: {datacenter.machines(DARK)}")
        self._at("it is back")
        told["undisturbed"] = sorted(datacenter.guests()) == running and await self._labman.server(USER) == record
        told["lit"] = await datacenter.cli("rack", "show", "r1")
        told["of the node"] = [one.what async for one in self._client.decisions.list(f"node/{DARK}")]
        self._at("the end")

    async def _web_runs(self) -> VmView:
        """The tenant's machine, once it does."""

        async def look() -> VmView | None:
            view = await self._client.vms.get(*TENANT, self._web)
            return view if view.phase is VmPhase.RUNNING else None

        return await found_by(look)

    async def _takes_machines(self, rack: str) -> None:
        """Until the one blade of a rack does."""

        async def look() -> BladeView | None:
            blade = await self._client.racks.blade(rack, "b1")
            return blade if blade.alive and blade.lifecycle is Lifecycle.ON_DUTY and not blade.objection else None

        await found_by(look)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(Path(sys.argv[1])))))
