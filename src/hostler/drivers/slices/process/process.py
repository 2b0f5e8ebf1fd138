"""A process: started, adopted, ended. Held by a handle, because a pid may be reused."""

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

from hostler.drivers.slices.process.process_handle import End, has_proc, open_process, process_at, processes
from hostler.kit.clock import boot_id
from hostler.kit.processes import users_pids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from hostler.drivers.slices.process.process_handle import Handle

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


def deleted_bytes_held(pid: int, device: int) -> int:
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

    def __init__(self, mark: Mark, handle: Handle, *, is_ours: bool, is_confined: bool) -> None:
        self.mark, self._handle, self._is_ours, self._is_confined = mark, handle, is_ours, is_confined
        self.how = ""
        """How it ended, once it has."""
        self._ended = asyncio.Event()
        self._is_held = True
        handle.watch(self._on_end)

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
            mark = Mark(pid=child.pid, start_time=process_at(child.pid).start_time, boot_id=boot_id())
            process = cls(mark, open_process(child.pid, is_child=True), is_ours=True, is_confined=is_confined)
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
        is_ours = mark.pid in _children
        try:
            handle = open_process(mark.pid, is_child=is_ours)
        except OSError:
            return None
        try:
            look = process_at(mark.pid)
        except OSError:
            handle.close()
            return None
        if not look.started_at(mark.start_time) or (look.has_ended and not is_ours):
            handle.close()
            return None
        return cls(mark, handle, is_ours=is_ours, is_confined=is_confined)

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    async def wait_until_ended(self) -> None:
        await self._ended.wait()

    def kill(self) -> None:
        """Kill it and its group."""
        if self._is_held:
            with suppress(OSError):  # the group first: while it exists, the number is not reused
                os.killpg(self.mark.pid, signal.SIGKILL)
            with suppress(OSError):
                self._handle.kill()

    def let_go(self) -> None:
        """Stop watching it."""
        if self._is_held:
            self._is_held = False
            self._handle.close()

    def _on_end(self) -> None:
        self.how = "its process ended"
        if self._is_ours:
            with suppress(OSError):  # the rest of its group: while a process is in it, the number is not reused
                os.killpg(self.mark.pid, signal.SIGKILL)
            if (end := self._handle.end()) is not None:
                by_signal = self._is_confined and end.exit_code > _SIGNALLED
                self.how = _how(End(0, end.exit_code - _SIGNALLED) if by_signal else end)
            _children.discard(self.mark.pid)
        self.let_go()
        self._ended.set()


def _how(end: End) -> str:
    if not end.signal:
        return f"its process ended with exit code {end.exit_code}"
    try:
        return f"its process was ended by {signal.Signals(end.signal).name}"
    except ValueError:
        return f"its process was ended by signal {end.signal}"


def end_user(uid: int) -> None:
    """Kill everything that runs as that user, including processes outside the worker's group."""
    _end_all(lambda: users_pids(uid))


def end_family(mark: Mark, family: str, groups: Sequence[str]) -> None:
    """Kill what an ended process left behind: its session, its control groups, and processes with its family mark."""
    _end_all(lambda: _family(mark, family, groups))


def _end_all(find: Callable[[], Iterable[int]]) -> None:
    for _ in range(ROUNDS):  # they may have started others in the meantime
        held: dict[int, Handle] = {}
        for pid in find():
            with suppress(OSError):
                held[pid] = open_process(pid)
        if not held:
            return
        still = set(find())  # held before this scan: a process that has the number now also belongs to the set
        for pid, handle in held.items():
            if pid in still:
                with suppress(OSError):
                    handle.kill()
            handle.close()


def _family(mark: Mark, family: str, groups: Sequence[str]) -> list[int]:
    if mark.boot_id != boot_id():
        return []
    found: dict[int, None] = {}
    for group in groups:
        with suppress(OSError, ValueError):
            found.update((int(line), None) for line in (Path(group) / "cgroup.procs").read_text().split())
    wanted = f"{FAMILY}={family}".encode()
    has_session, earliest = not _is_given_away(mark), mark.start_time - (0 if has_proc() else 1)
    for one in processes():
        if one.pid == os.getpid() or one.has_ended or one.start_time < earliest:
            continue
        in_session = has_session and mark.pid in (one.group, one.session)
        if in_session or (family and wanted in _environment(one.pid)):
            found[one.pid] = None
    return list(found)


def _environment(pid: int) -> list[bytes]:
    """Return the variables of a process; none: it has ended, or this system does not show them."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _is_given_away(mark: Mark) -> bool:
    """Return whether its pid belongs to another process now. It is not reused while its session has a process."""
    try:
        return not process_at(mark.pid).started_at(mark.start_time)
    except OSError:
        return False
