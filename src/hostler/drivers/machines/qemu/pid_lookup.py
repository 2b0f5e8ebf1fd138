"""Finds the processes of a machine, and holds them so that a signal cannot reach another process.

A process id is stored with the process's start time. It is accepted only for a process that has this start time and
works in the machine's folder. Otherwise the machine's processes are searched among all. Signals are sent through a
descriptor of the process that was opened before these checks, so a reused id is never hit.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec

from hostler.drivers.machines.qemu.folder import ALIVE
from hostler.kit.clock import boot_id
from hostler.kit.processes import runs_as

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType

    from hostler.drivers.machines.qemu.folder import MachineFolder


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a machine's process, unique on this host."""

    pid: int
    start_time: int
    """In clock ticks since the host's boot."""
    boot_id: str


class Found:
    """A process held by a descriptor: its id may be reused, the descriptor never is."""

    __slots__ = ("descriptor", "parent", "pid", "start_time")

    def __init__(self, pid: int, start_time: int, parent: int, descriptor: int) -> None:
        self.pid, self.start_time, self.parent, self.descriptor = pid, start_time, parent, descriptor

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def run(self) -> Run:
        return Run(pid=self.pid, start_time=self.start_time, boot_id=boot_id())

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            signal.pidfd_send_signal(self.descriptor, signal.SIGKILL)

    async def wait_until_ended(self) -> None:
        """Wait until it has ended; a zombie has ended too."""
        await readable(self.descriptor)

    def close(self) -> None:
        os.close(self.descriptor)


class ProcessInfo(msgspec.Struct, frozen=True):
    """Fields of `/proc/PID/stat`."""

    state: str
    parent: int
    start_time: int

    @classmethod
    def at(cls, pid: int) -> ProcessInfo:
        """Read the fields of a process. ProcessLookupError: no such process."""
        try:
            text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            raise ProcessLookupError(pid) from None
        words = text.rpartition(")")[2].split()
        return cls(words[0], int(words[1]), int(words[19]))


def process_of_run(folder: MachineFolder, run: Run | None) -> Found | None:
    """Return the process that `run` names, if it is still that one."""
    if run is None or run.boot_id != boot_id():
        return None
    return _open_process(folder, run.pid, run.start_time)


def holders(folder: MachineFolder) -> Iterator[Found]:
    """Yield all processes of the machine: QEMU and its guard."""
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid():
            found = _open_process(folder, int(name), None)
            if found is not None:
                yield found


def of_user(folder: MachineFolder, uid: int, pids: Iterable[int]) -> Iterator[Found]:
    """Yield those processes that run as the machine's user, in any working directory.

    Each machine gets a different user. Should two nodes of a host have picked the same user, a process that works in
    another folder given to that user belongs to the other machine: no process gets in there from outside.
    """
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            look = ProcessInfo.at(pid)
            if runs_as(uid, pid) and not _is_another_machine(folder, uid, pid):
                yield Found(pid, look.start_time, look.parent, descriptor)
                continue
        except OSError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_another_machine(folder: MachineFolder, uid: int, pid: int) -> bool:
    try:
        place = os.stat(f"/proc/{pid}/cwd")
    except OSError:
        return False
    given = place.st_uid == os.geteuid() and place.st_gid == uid and place.st_mode & stat.S_ISVTX
    return bool(given) and not os.path.samestat(place, os.stat(folder.descriptor))


def _open_process(folder: MachineFolder, pid: int, start_time: int | None) -> Found | None:
    """Return the process with that id, if it belongs to the machine."""
    if start_time is None and not _may_be_in(folder, pid):  # most do not, and a descriptor costs more than this check
        return None
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        look = ProcessInfo.at(pid)
        known = start_time is not None and look.start_time == start_time
        if (
            look.state not in "ZX"
            and (known or start_time is None)
            and _may_be_in(folder, pid)
            and (known or _has_lock(folder, pid))
        ):
            return Found(pid, look.start_time, look.parent, descriptor)
    except OSError:
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _may_be_in(folder: MachineFolder, pid: int) -> bool:
    """Return whether it works in the folder. Without permission to read that (in a container), its user decides."""
    try:
        # The names first: they touch no file system, and that of a foreign process may not answer for minutes.
        names = (os.readlink(f"/proc/{pid}/cwd"), os.readlink(f"/proc/self/fd/{folder.descriptor}"))
        if len(set(map(os.path.basename, names))) > 1:
            return False
        return os.path.samestat(os.stat(f"/proc/{pid}/cwd"), os.stat(folder.descriptor))
    except PermissionError:
        return _is_its_user(folder, pid)
    except OSError:
        return False


def _has_lock(folder: MachineFolder, pid: int) -> bool:
    wanted = os.stat(ALIVE, dir_fd=folder.descriptor)
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except PermissionError:
        return _is_its_user(folder, pid)
    for name in names:
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(f"/proc/{pid}/fd/{name}"), wanted):
                return True
    return False


def _is_its_user(folder: MachineFolder, pid: int) -> bool:
    """Return whether it runs as the machine's user, which is the group of the folder (`privileges`)."""
    group = os.stat(folder.descriptor).st_gid
    if group in (0, os.getegid()):
        return False
    try:
        return os.stat(f"/proc/{pid}").st_uid == group
    except FileNotFoundError:
        return False


async def readable(descriptor: int) -> None:
    """Wait until the descriptor is readable."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)
