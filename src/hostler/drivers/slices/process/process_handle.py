"""Processes of this host, by `/proc` and pidfds; on systems without them, by `ps` and by polling.

A pid may be reused. A pidfd never leads to another process. Where there are none, the start time is compared right
before a signal is sent; such systems (macOS) give out pids in sequence, so one is not reused within that time.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

POLL_EVERY = 0.1
"""Seconds between two looks at a process that cannot be watched."""
PS_WITHIN = 10.0
_PROC = Path("/proc")


class ProcessInfo(NamedTuple):
    """A process, as observed."""

    pid: int
    state: str
    group: int
    session: int
    start_time: int
    """In clock ticks since the boot of the host; where `ps` says it, in seconds since 1970."""

    @property
    def has_ended(self) -> bool:
        return self.state[:1] in ("Z", "X")

    def started_at(self, start_time: int) -> bool:
        """Return whether it is the process that had that start time."""
        return abs(self.start_time - start_time) <= (0 if has_proc() else 1)  # `ps` calculates it, and rounds


class End(NamedTuple):
    """How a child ended."""

    exit_code: int
    signal: int
    """0: it exited."""


class Handle(Protocol):
    """A process that stays the same one."""

    def watch(self, ended: Callable[[], None]) -> None:
        """Call `ended` once, when the process has ended, unless `close` is called before."""

    def kill(self) -> None:
        """Kill it. OSError: it has ended."""

    def end(self) -> End | None:
        """Return how this child ended, once; None: it was reaped elsewhere."""

    def close(self) -> None:
        """Forget it."""


def has_proc() -> bool:
    """Return whether this system shows processes as files."""
    try:
        return os.path.exists(_PROC / "self" / "stat")
    except OSError:
        return False


def has_pidfds() -> bool:
    """Return whether this system has descriptors of processes."""
    return hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal") and hasattr(os, "P_PIDFD")


def process_at(pid: int) -> ProcessInfo:
    """Return a process. OSError: no such process."""
    if not has_proc():
        found = next(_ps("-p", str(pid)), None)
        if found is None:
            raise ProcessLookupError(pid)
        return found
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        raise ProcessLookupError(pid) from None
    return _info(pid, text)


def processes() -> Iterator[ProcessInfo]:
    """Yield all processes of this host."""
    if not has_proc():
        yield from _ps("-A")
        return
    for name in os.listdir(_PROC):
        if name.isdecimal():
            with suppress(OSError, IndexError, ValueError):  # it has just ended
                yield _info(int(name), (_PROC / name / "stat").read_text(encoding="ascii", errors="replace"))


def open_process(pid: int, *, is_child: bool = False) -> Handle:
    """Return a handle on a process. OSError: no such process."""
    return PidfdHandle(pid) if has_pidfds() else PolledHandle(pid, is_child=is_child)


class PidfdHandle:
    """A process by its pidfd."""

    def __init__(self, pid: int) -> None:
        self._descriptor = os.pidfd_open(pid)
        self._loop: asyncio.AbstractEventLoop | None = None

    def watch(self, ended: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, ended)

    def kill(self) -> None:
        if self._descriptor >= 0:
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def end(self) -> End | None:
        with suppress(ChildProcessError):
            found = os.waitid(os.P_PIDFD, self._descriptor, os.WEXITED)
            if found is not None:
                exited = found.si_code == os.CLD_EXITED
                return End(found.si_status if exited else 0, 0 if exited else found.si_status)
        return None

    def close(self) -> None:
        if self._descriptor >= 0:
            if self._loop is not None:
                self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1


class PolledHandle:
    """A process by its number and start time."""

    def __init__(self, pid: int, *, is_child: bool) -> None:
        self._pid, self._is_child = pid, is_child
        self._start_time = process_at(pid).start_time
        self._end: End | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._has_ended = False

    def watch(self, ended: Callable[[], None]) -> None:
        self._timer = asyncio.get_running_loop().call_later(POLL_EVERY, self._look, ended)

    def kill(self) -> None:
        # A child that is not reaped yet keeps its number.
        if self._has_ended or (not self._is_child and not process_at(self._pid).started_at(self._start_time)):
            raise ProcessLookupError(self._pid)
        os.kill(self._pid, signal.SIGKILL)

    def end(self) -> End | None:
        return self._end

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self, ended: Callable[[], None]) -> None:
        if self._is_running():
            self.watch(ended)
            return
        self._has_ended = True
        ended()

    def _is_running(self) -> bool:
        try:
            if self._is_child:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
                if pid:
                    code = os.waitstatus_to_exitcode(status)
                    self._end = End(max(code, 0), max(-code, 0))
                return not pid
            os.kill(self._pid, 0)
        except PermissionError:
            return True
        except OSError:  # it has ended; or, a child, was reaped elsewhere
            return False
        return True


def _info(pid: int, stat: str) -> ProcessInfo:
    words = stat.rpartition(")")[2].split()
    return ProcessInfo(pid, words[0], int(words[2]), int(words[3]), int(words[19]))


def _ps(*which: str) -> Iterator[ProcessInfo]:
    """Yield processes by `ps`, with columns that Linux, macOS and the BSDs have."""
    command = ["ps", *which, "-o", "pid=,stat=,pgid=,lstart="]
    environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
    done = subprocess.run(command, capture_output=True, env=environment, timeout=PS_WITHIN, check=False)
    for line in done.stdout.decode("ascii", "replace").splitlines():
        pid, state, group, *started = line.split()
        with suppress(OSError, ValueError):  # it has just ended
            start_time = int(time.mktime(time.strptime(" ".join(started), "%a %b %d %H:%M:%S %Y")))
            yield ProcessInfo(int(pid), state, int(group), os.getsid(int(pid)), start_time)
