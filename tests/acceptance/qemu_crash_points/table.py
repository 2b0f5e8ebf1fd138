"""The processes of machines, by the folder that is their working directory: nobody who runs them is asked."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

QEMU = "qemu-system"
GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
"""What one reads of a process that has just ended."""


class Process(NamedTuple):
    """One that stands in a machine's folder."""

    pid: int
    node: str
    folder: str
    """Its name: the machine's, unless it is being taken away."""
    is_qemu: bool


def processes(machines: Path) -> list[Process]:
    """All that stand in a machine's folder, below `machines/NODE/vms/NAME`."""
    root = os.path.realpath(machines)
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            where = os.readlink(f"/proc/{entry.name}/cwd")
            if not where.startswith(f"{root}/"):
                continue
            comm = Path(f"/proc/{entry.name}/comm").read_text(encoding="utf-8")
        except GONE:
            continue
        parts = where.removeprefix(f"{root}/").removesuffix(" (deleted)").split("/")
        if len(parts) == 3 and parts[1] == "vms":
            found.append(Process(int(entry.name), parts[0], parts[2], comm.startswith(QEMU)))
    return found


def count(machines: Path, node: str) -> int:
    """QEMU processes of a node."""
    return len(_of(machines, node))


def kill(machines: Path, node: str) -> int:
    """Kill those; how many there were."""
    killed = 0
    for process in _of(machines, node):
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(process.pid)
            try:
                if any(process.pid == other.pid for other in _of(machines, node)):  # the pid is still that one's
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                    killed += 1
            finally:
                os.close(descriptor)
    return killed


def kill_all(machines: Path) -> None:
    """Whatever stands in a folder below."""
    for process in processes(machines):
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


def run_time(pid: int) -> int:
    """Nanoseconds that a QEMU's guest has had: those of the threads that are its processors."""
    total = 0
    with suppress(*GONE):
        for task in Path(f"/proc/{pid}/task").iterdir():
            if (task / "comm").read_text(encoding="utf-8").startswith("CPU "):
                total += int((task / "schedstat").read_text(encoding="ascii").split()[0])
    return total


def locked(file: Path) -> bool:
    """Whether somebody holds a lock on it; nobody is disturbed by the look."""
    inode = os.stat(file).st_ino
    lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    return any(line.split()[1] == "FLOCK" and line.split()[5].endswith(f":{inode}") for line in lines)


def _of(machines: Path, node: str) -> list[Process]:
    """A node's QEMU processes; where there is none, those that are about to become one."""
    there = [process for process in processes(machines) if process.node == node]
    return [process for process in there if process.is_qemu] or there
