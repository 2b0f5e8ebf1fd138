"""A control plane with real machines, as a user has it: processes of ours, the command line, and traces on the host."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from harness.pace import patience
from up_process import Done, HostlerProcess, hostler

from hostler.client import Client
from hostler.drivers.machines.qemu.bridge import tap_name
from hostler.drivers.machines.qemu.firewall import find_nft, table_name
from hostler.drivers.machines.qemu.images.folder import ImageFolder
from hostler.drivers.machines.qemu.privileges import ControlGroups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hostler.model.vm_api import VmView

SOME = 20.0
"""Seconds, at most, for what takes some on a quiet machine: `patience(SOME)`."""
WITHIN = 60.0
"""For those who take a number and know nothing of the machine's pace."""
NUMBERS = range(1, 30)
"""Of machines: as many as a place of these tests may ever have had."""


class RealPlane:
    """A data folder with images of its own, and `hostler up` on it."""

    def __init__(self, folder: Path, images: ImageFolder) -> None:
        self.folder, self.data = folder, folder / "data"
        self.data.mkdir(parents=True, mode=0o700)
        shutil.copytree(
            images.path,
            self.data / "images",
            ignore=shutil.ignore_patterns("cache", "run", "scratch", "parts", ".making-*"),
        )
        self.environ = {
            "HOSTLER_DATA": str(self.data),
            "HOSTLER_ACCELERATOR": "tcg",  # as the warm images were made
            "HOSTLER_CPU_OVERCOMMIT": "16",  # machines of a test must all find room, however few cores there are
            "XDG_STATE_HOME": str(folder / "state"),
        }
        self.up: HostlerProcess | None = None

    def start(self, *options: object) -> HostlerProcess:
        """Start it; it is ready when this returns."""
        arguments = ("up", "--machines", "qemu", "--listen", "127.0.0.1:0", *options)
        self.up = HostlerProcess(*arguments, folder=self.folder, environ=self.environ)
        self.up.wait_for("ready http", patience(SOME))
        return self.up

    async def stop(self) -> None:
        """Ask it to end."""
        assert self.up is not None
        self.up.signal(signal.SIGTERM)
        assert await self.up.ends(patience(SOME)) == 0, self.up.tail()

    async def cli(self, *arguments: object, code: int = 0, stdin: str = "") -> Done:
        """A command, and how it must end."""
        done = await hostler(*arguments, stdin=stdin, within=patience(SOME), **self.environ)
        assert done.code == code, f"{arguments}: {done}"
        return done

    def client(self) -> Client:
        """The API, as the administrator has it."""
        assert self.up is not None
        url = next(line.split()[1] for line in self.up.text.splitlines() if line.startswith("ready http"))
        return Client(url, (self.data / "admin.token").read_text(encoding="ascii").strip())

    def end(self) -> None:
        """Leave nothing, however the test ended."""
        if self.up is not None:
            self.up.kill()
        for pid in working_below(self.data):
            os.kill(pid, signal.SIGKILL)

    # What is there on the host

    def folder_of(self, vm: str) -> Path:
        """Of the machine with that id."""
        (found,) = self.data.glob(f"machines/*/vms/{vm}")
        return found

    def process_of(self, vm: str) -> int:
        """The one process of that machine: two would be one too many."""
        (pid,) = working_below(self.folder_of(vm))
        return pid

    def traces(self) -> dict[str, set[str]]:
        """What machines have beside the control plane's own: processes, ports, sockets, files, groups, rules."""
        places = self.places()
        pids = working_below(self.data)
        return {
            "processes": {str(pid) for pid in pids},
            "ports": listening(pids),
            "files": {str(path.relative_to(self.data)) for path in self.data.glob("machines/*/vms/**/*")},
            "images": {str(path.relative_to(self.data)) for path in self.data.glob("images/**/*")},
            "links": {f"{path.name} {path.stat().st_nlink}" for path in self.data.glob("images/*/*") if path.is_file()},
            "taps": {
                name for place in places for number in NUMBERS if (name := tap_name(place, number)) in interfaces()
            },
            "groups": {
                f"{folder}/{name}"
                # Not by glob: groups of other tests end while it looks.
                for folder, names, _ in os.walk("/sys/fs/cgroup")
                for name in names
                if name.startswith(tuple(ControlGroups(self.data, place).name for place in places))
            },
            "rules": {table for place in places for table in tables() if table.startswith(f"{table_name(place)}_")},
        }

    def places(self) -> list[str]:
        """The ids by which what is made for machines of the nodes is told from that of others."""
        return [msgspec.json.decode(file.read_bytes())["place"] for file in sorted(self.data.glob("machines/*/place"))]

    def rules(self) -> set[str]:
        """Of the packet filter, for the nodes or any machine of theirs."""
        return {table for place in self.places() for table in tables() if table.startswith(table_name(place))}

    def own_traces(self) -> dict[str, set[str]]:
        """What the control plane itself has that must not grow with machines that are gone."""
        assert self.up is not None
        return {"children": set(children(self.up.pid)), "ports": listening([self.up.pid])}

    def descriptors(self) -> int:
        """How many files and connections the control plane has open."""
        assert self.up is not None
        return len(os.listdir(f"/proc/{self.up.pid}/fd"))


def working_below(folder: Path) -> list[int]:
    """Processes whose working directory is in it: those of machines, for the control plane works elsewhere."""
    found = []
    for pid in _pids():
        try:
            at = Path(os.readlink(f"/proc/{pid}/cwd"))
            if at.is_relative_to(folder):
                found.append(pid)
        except OSError:  # it ended, or is none of ours
            continue
    return sorted(found)


def listening(pids: list[int]) -> set[str]:
    """Addresses on which these processes wait for connections."""
    inodes: dict[str, str] = {}
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            words = line.split()
            if words[3] in ("0A", "07"):
                inodes[f"socket:[{words[9]}]"] = f"{table} {words[1]}"
    found = set()
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                try:
                    target = os.readlink(descriptor)
                except FileNotFoundError:
                    continue
                if target in inodes:
                    found.add(inodes[target])
    return found


def children(pid: int) -> list[str]:
    """Of a process, by what they run."""
    found: list[str] = []
    ids: list[str] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            ids += (task / "children").read_text(encoding="ascii").split()
    for child in ids:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            found.append(Path(f"/proc/{child}/comm").read_text(encoding="utf-8").strip())
    return found


def interfaces() -> set[str]:
    return set(os.listdir("/sys/class/net"))


def tables() -> set[str]:
    """Of the packet filter, where there is one."""
    nft = find_nft()
    if nft is None:
        return set()
    said = subprocess.run([nft, "list", "tables"], capture_output=True, text=True, check=False).stdout
    return {line.split()[-1] for line in said.splitlines() if line}


def command_line(pid: int) -> list[str]:
    """What a process was run with."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]


async def seen(client: Client, vm: str, is_so: Callable[[VmView], object], within: float = SOME) -> VmView:
    """The machine as the API tells of it, once it is so."""
    end = time.monotonic() + patience(within)
    while not is_so(view := await client.vms.get("default", "default", vm)):
        assert time.monotonic() < end, f"{vm}: it is still {view}"
        await asyncio.sleep(0.05)
    return view


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())
