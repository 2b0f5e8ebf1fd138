"""One control plane on a folder of its own, a replica and two nodes, whose machines are real."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import guest_login
from crash_points.scene import LOOK, NODES, ORG, PROJECT, Scene, Wrong
from harness.artefacts import safe
from harness.pace import patience

from hostler.drivers.machines.qemu import firewall
from hostler.drivers.machines.qemu.privileges import ControlGroups
from hostler.errors import HostlerError
from hostler.keys.families import ARRIVAL, COMMAND, HANDLE, NAME, VM
from hostler.kit.processes import cgroup_bases
from hostler.model.vm import MachineState, Power, SnapshotState, Step, VmSpec

from . import table
from .watching import Watching

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from crash_points.children import Child, Launcher

    from hostler.model.vm import VirtualMachine, VmHandle

AT = (ORG, PROJECT)
SPEC = VmSpec(cpus=1, memory_mib=128, ssh_keys=(guest_login.KEY.export_public_key().decode().strip(),))
SETTLES_WITHIN = 20.0
"""Seconds, at most, for what a quiet machine does in five."""
TTLS = {"node_ttl": 20.0, "fencing_time": 40.0, "leadership_ttl": 20.0, "lock_ttl": 1.0}
"""Nobody waits for a lease to end here, and none shall because two cores are busy with guests."""
LEAKS = 3
"""Exit code of `qemu-img check`: room that nobody uses, as a QEMU that is killed may leave it; nothing is broken."""
LATER = {"serial.log"}
"""What comes into the folder of a machine by and by."""


class QemuScene(Scene):
    """Left: everybody is dead, and every machine."""

    def __init__(self, launcher: Launcher, folder: Path) -> None:
        super().__init__(launcher, folder)
        self.watching = Watching(self.machines)
        self.killed = 0
        """QEMU processes, by agents that were told to."""
        self._usual: set[str] = set()
        """What there is of a machine that was made undisturbed."""
        self.passed: list[tuple[str, int, bool]] = []
        """Points since the agents were told to count, and whether a machine had a process on that node."""

    @property
    def machines(self) -> Path:
        return self._folder / "machines"

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        await self.watching.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.watching.__aexit__()
            await super().__aexit__()
        finally:
            table.kill_all(self.machines)

    def _start(self, name: str) -> None:
        data, log = str(self._folder), str(self._folder / f"{name}.log")
        role = "replica" if name == "replica" else "agent"
        more = {"listen": "127.0.0.1:0"} if role == "replica" else {"node": name, "rack": "r1", "machines": "qemu"}
        self.children[name] = self._launcher.start(role, self._heard, data=data, log=log, **more, **TTLS)

    def _heard(self, child: Child, message: dict[str, Any]) -> None:
        if message["is"] == "killed":
            self.killed += message["count"]
        elif message["is"] == "point":
            self.passed.append((message["name"], message["number"], message["there"] > 0))
        super()._heard(child, message)

    # What a user does

    async def aim(self, target: tuple[str, int] | None, *, kills: bool, dies: bool) -> None:
        """Let every agent count, and at `target` kill the QEMU of its node, or itself, or both."""
        await self.up()
        self.passed.clear()
        for node in NODES:
            await self.children[node].arm(target, [], machines=str(self.machines), node=node, kills=kills, dies=dies)

    async def died(self, crashes: int, *, dies: bool) -> None:
        """Until somebody has come to the point after so many crashes, and whoever died of it is back."""

        async def missing() -> str | None:
            if len(self.crashes) == crashes:
                return f"nobody has come to this step; they came to {self.passed}"
            dead = [child for _, child in self.crashes[crashes:]]
            back = [child for _, child in self.restarts]
            return "the agent is not back" if dies and any(child not in back for child in dead) else None

        await self._until(missing)

    async def rest(self) -> None:
        """Until nobody counts any more."""
        for node in NODES:
            await self.children[node].disarm()

    async def handle(self, vm: str) -> VmHandle:
        found = await HANDLE.get(self.store, org=ORG, project=PROJECT, vm=vm)
        assert found is not None
        return found.value

    async def say(self, vm: str, command: str) -> str:
        """What a command says inside a machine, by SSH."""
        access = (await self.handle(vm)).access
        assert access is not None
        async with asyncio.timeout(patience(SETTLES_WITHIN)):
            connection = await guest_login.login(access)
            async with connection:
                return str((await connection.run(command, check=True)).stdout).strip()

    # What must be

    async def learn(self, vm: str) -> None:
        """This one was made undisturbed, and runs."""
        self._usual = {path.name for path in self._home((await self.handle(vm)).node, vm).iterdir()}

    async def settled(self) -> None:
        await super().settled()
        self.watching.check()

    async def check_empty(self) -> None:
        """Nothing at all is left of any machine."""
        for key in (VM, NAME, HANDLE, COMMAND, ARRIVAL):
            await self._count(key, 0)
        if left := table.processes(self.machines):
            raise Wrong(f"processes are left: {left}")
        for node in NODES:
            if files := [path.name for path in (self.machines / node / "vms").iterdir()]:
                raise Wrong(f"{node}: files are left: {files}")
            place = json.loads((self.machines / node / "place").read_bytes())["place"]
            if groups := _groups(self.machines / node, place):
                raise Wrong(f"{node}: control groups are left: {groups}")
            if tables := _tables(place):
                raise Wrong(f"{node}: rules of machines are left: {tables}")

    def check_disk(self, node: str, vm: str, snapshots: int) -> None:
        """Of a machine that is off: nothing is broken in it, and there are so many snapshots inside."""
        disk = self._home(node, vm) / "disk.qcow2"
        looked = subprocess.run(["qemu-img", "check", disk], capture_output=True, text=True, check=False)
        safe(looked.returncode in (0, LEAKS), f"{vm}: its disk is broken", check=looked.stdout)
        listed = subprocess.run(["qemu-img", "snapshot", "-l", disk], capture_output=True, text=True, check=True)
        inside = listed.stdout.strip().splitlines()[2:]
        safe(len(inside) == snapshots, f"{vm}: {snapshots} snapshots were wished for, and its disk has {inside}")

    def _home(self, node: str, vm: str) -> Path:
        return self.machines / node / "vms" / vm

    async def _until(self, missing: Callable[[], Awaitable[str | None]]) -> None:
        end = time.monotonic() + patience(SETTLES_WITHIN)
        while (what := await missing()) is not None:
            self.watching.check()
            if time.monotonic() > end:
                raise Wrong(
                    f"not within {patience(SETTLES_WITHIN):g} s: {what}; ended: {self.ended()}\n{self._last_words()}"
                )
            await asyncio.sleep(LOOK)

    async def _unsettled(self) -> str | None:
        """What is not yet as it was wished for: the store, the process table and the disk must agree."""
        try:
            wishes = {entry.value.id: entry.value for entry in (await VM.list(self.store)).entries}
            handles = {entry.value.id: entry.value for entry in (await HANDLE.list(self.store)).entries}
            arrivals = (await ARRIVAL.list(self.store)).entries
        except HostlerError as error:
            return str(error)
        there = {(node, path.name) for node in NODES for path in (self.machines / node / "vms").glob("*")}
        processes = table.processes(self.machines)
        runs = [(process.node, process.folder) for process in processes if process.is_qemu]
        if stray := [other for other in processes if (other.node, other.folder) not in runs]:  # no guard of a machine
            return f"beside machines that are off there are {stray}"
        if arrivals:
            return f"expected somewhere: {arrivals}"
        for vm in {*handles, *(name for _, name in (*there, *runs))} - set(wishes):
            return f"{vm}: there though nobody wishes for it: {there}, {runs}, {handles.get(vm)}"
        for id_, wish in wishes.items():
            places = [node for node, name in there if name == id_]
            running = [node for node, name in runs if name == id_]
            if what := _unlike(wish, handles.get(id_), places, running) or self._unclean(id_, places[0], bool(running)):
                return f"{id_}: {what}; {handles.get(id_)}"
        return None

    def _unclean(self, vm: str, node: str, runs: bool) -> str | None:
        home = self._home(node, vm)
        if self._usual and (more := {path.name for path in home.iterdir()} - self._usual - LATER):
            return f"more is there than of one that was just made: {more}"
        if table.locked(home / "alive") is not runs:
            return f"its lock says that it is {'off' if runs else 'on'}"
        return None


def _unlike(wish: VirtualMachine, handle: VmHandle | None, places: list[str], running: list[str]) -> str | None:
    if wish.deleting:
        return "still being deleted"
    on = wish.power is Power.ON
    if handle is None or places != [handle.node] or running != [handle.node] * on:
        return f"it is at {places}, and runs at {running}"
    state = MachineState.RUNNING if on else MachineState.STOPPED
    if handle.state is not state or handle.generation != wish.generation:
        return f"wished {wish.power} (generation {wish.generation})"
    if wish.move is not None and handle.moved < wish.move.number:
        return f"not moved yet to {wish.move.to}"
    if wish.restore is not None and handle.restored < wish.restore.number:
        return f"not restored yet to {wish.restore.snapshot}"
    ready = {name for name, snapshot in handle.snapshots.items() if snapshot.state is SnapshotState.READY}
    if not set(wish.snapshots) == set(handle.snapshots) == ready:
        return f"snapshots {wish.snapshots}, {handle.snapshots}"
    if on and (handle.readiness is None or handle.readiness.step is not Step.AVAILABLE):
        return "not available"
    return None


def _groups(folder: Path, place: str) -> list[str]:
    name = ControlGroups(folder, place).name
    return [str(path) for base in cgroup_bases(Path("/proc"), Path("/")) for path in Path(base.path).glob(f"{name}-*")]


def _tables(place: str) -> list[str]:
    """Of machines of that place; the place itself may have one as long as there is an agent."""
    nft = firewall.find_nft()
    if nft is None:
        return []
    said = subprocess.run([nft, "list", "tables"], capture_output=True, text=True, check=False).stdout
    return re.findall(rf"{firewall.table_name(place)}_\d+", said)
