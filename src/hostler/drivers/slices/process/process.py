"""A process: started, adopted, ended. Held by a pidfd, because a pid may be reused."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from hostler.drivers.machines.qemu.pid_lookup import ProcessInfo, users_pids
from hostler.kit.clock import boot_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

FAMILY = "SLICE_RUN"
"""Set in the environment of a worker, and so of all its descendants: they are found by it, in any session."""
ROUNDS = 10
_SIGNALLED = 128
_children: set[int] = set()
"""Children of this process, which it has to reap."""


def children_of(pid: int) -> list[int]:
    """Return the running children of a process."""
    with suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    return []


def cpu_seconds(pid: int, groups: Sequence[str] = ()) -> float | None:
    """Return the processor time of a process: that of its control group, else its own and its children's.

    None: it is gone.

    The time of an ended child counts as soon as its parent has waited for it.
    """
    for group in groups:
        with suppress(OSError, ValueError):
            lines = dict(line.split() for line in (Path(group) / "cpu.stat").read_text().splitlines())
            if "usage_usec" in lines:
                return int(lines["usage_usec"]) / 1e6
    ticks = found = 0
    family = [pid]
    for one in family:
        family += children_of(one)
        with suppress(OSError, IndexError, ValueError):
            words = Path(f"/proc/{one}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            ticks += sum(map(int, words[11:15]))
            found += 1
    return ticks / os.sysconf("SC_CLK_TCK") if found else None


def held_deleted(pid: int, device: int) -> int:
    """Return the bytes on a device in deleted files that a process, or one of its descendants, still has open."""
    found: dict[int, int] = {}
    todo = [pid]
    for one in todo:
        todo += children_of(one)
        with suppress(OSError), os.scandir(f"/proc/{one}/fd") as descriptors:  # it has ended, or denies access
            for descriptor in descriptors:
                with suppress(OSError):
                    file = os.stat(descriptor.path)
                    if file.st_nlink == 0 and file.st_dev == device and stat.S_ISREG(file.st_mode):
                        found[file.st_ino] = file.st_blocks * 512
    return sum(found.values())


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a process: no other process of this host ever has the same."""

    pid: int
    start_time: int
    boot_id: str


class Process:
    """A process and its group: it leads its own session."""

    def __init__(self, mark: Mark, descriptor: int, *, is_ours: bool, is_confined: bool) -> None:
        self.mark, self._descriptor, self._is_ours, self._is_confined = mark, descriptor, is_ours, is_confined
        self.how = ""
        """How it ended, once it has."""
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(descriptor, self._on_end)

    @classmethod
    def start(
        cls,
        argv: Sequence[str],
        *,
        cwd: Path,
        environment: Mapping[str, str],
        output: int,
        keep: Sequence[int],
        is_confined: bool = False,
    ) -> tuple[Process, BinaryIO]:
        """Start a process and return it with its standard input. OSError: it cannot be started.

        `is_confined`: it is the parent of one in namespaces, and ends with 128 + the number of the signal that ended
        that one.
        """
        child = subprocess.Popen(
            list(argv),
            cwd=cwd,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
            umask=0o077,
            pass_fds=tuple(keep),
        )
        _children.add(child.pid)
        child.returncode = 0  # so that Popen leaves it alone when the object is deleted: `_on_end` reaps it
        assert child.stdin is not None  # noqa: S101 - a pipe was requested
        try:
            mark = Mark(pid=child.pid, start_time=ProcessInfo.at(child.pid).start_time, boot_id=boot_id())
            process = cls(mark, os.pidfd_open(child.pid), is_ours=True, is_confined=is_confined)
            return process, child.stdin  # type: ignore[return-value]
        except BaseException:
            child.stdin.close()
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)
            _children.discard(child.pid)
            raise

    @classmethod
    def adopt(cls, mark: Mark, *, is_confined: bool = False) -> Process | None:
        """Return the recorded process; None: it has ended."""
        if mark.boot_id != boot_id():
            return None
        try:
            descriptor = os.pidfd_open(mark.pid)
        except OSError:
            return None
        try:
            look = ProcessInfo.at(mark.pid)
        except OSError:
            os.close(descriptor)
            return None
        is_ours = mark.pid in _children
        if look.start_time != mark.start_time or (look.state in "ZX" and not is_ours):
            os.close(descriptor)
            return None
        return cls(mark, descriptor, is_ours=is_ours, is_confined=is_confined)

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    async def ended(self) -> None:
        await self._ended.wait()

    def kill(self) -> None:
        """Kill it and its group."""
        if self._descriptor >= 0:
            with suppress(OSError):  # the group first: while it exists, the number is not reused
                os.killpg(self.mark.pid, signal.SIGKILL)
            with suppress(OSError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def let_go(self) -> None:
        """Stop watching it."""
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _on_end(self) -> None:
        self.how = "its process ended"
        if self._is_ours:
            with suppress(OSError):  # the rest of its group; it is not reaped yet, so the number is not reused
                os.killpg(self.mark.pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                found = os.waitid(os.P_PIDFD, self._descriptor, os.WEXITED)
                if found is not None:
                    by_signal = self._is_confined and found.si_code == os.CLD_EXITED and found.si_status > _SIGNALLED
                    self.how = (
                        _how(os.CLD_KILLED, found.si_status - _SIGNALLED)
                        if by_signal
                        else _how(found.si_code, found.si_status)
                    )
            _children.discard(self.mark.pid)
        self.let_go()
        self._ended.set()


def _how(code: int, status: int) -> str:
    if code == os.CLD_EXITED:
        return f"its process ended with exit code {status}"
    try:
        return f"its process was ended by {signal.Signals(status).name}"
    except ValueError:
        return f"its process was ended by signal {status}"


def end_user(uid: int) -> None:
    """Kill everything that runs as that user, including processes outside the worker's group."""
    _end_all(lambda: users_pids(uid))


def end_family(mark: Mark, family: str, groups: Sequence[str]) -> None:
    """Kill what an ended process left behind: its session, its control groups, and processes with its family mark."""
    _end_all(lambda: _family(mark, family, groups))


def _end_all(find: Callable[[], Iterable[int]]) -> None:
    for _ in range(ROUNDS):  # they may have started others in the meantime
        held = {}
        for pid in find():
            with suppress(OSError):
                held[pid] = os.pidfd_open(pid)
        if not held:
            return
        still = set(find())  # held before this scan: a process that has the number now also belongs to the set
        for pid, descriptor in held.items():
            if pid in still:
                with suppress(OSError):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            os.close(descriptor)


def _family(mark: Mark, family: str, groups: Sequence[str]) -> list[int]:
    if mark.boot_id != boot_id():
        return []
    found: dict[int, None] = {}
    for group in groups:
        with suppress(OSError, ValueError):
            found.update((int(line), None) for line in (Path(group) / "cgroup.procs").read_text().split())
    wanted = f"{FAMILY}={family}".encode()
    has_session = not _is_given_away(mark)
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        with suppress(OSError, IndexError, ValueError):
            words = Path(f"/proc/{name}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            if words[0] in "ZX" or int(words[19]) < mark.start_time:
                continue
            in_session = has_session and mark.pid in (int(words[2]), int(words[3]))
            if in_session or (family and wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0")):
                found[int(name)] = None
    return list(found)


def _is_given_away(mark: Mark) -> bool:
    """Return whether its pid belongs to another process now. It is not reused while its session has a process."""
    try:
        return ProcessInfo.at(mark.pid).start_time != mark.start_time
    except OSError:
        return False
