"""The process of a machine: whether it lives, its start, its end, and connections to its sockets.

It lives exactly as long as the lock on the file `alive` is held. Only the process and its guard inherit a descriptor
with that lock. So this holds without the agent, and needs no process id. An id is needed only to send
signals (`pid_lookup`). A QEMU that its guest has compromised can release the lock. Therefore ending a machine ends
everything that runs as its user, even if the lock is free.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hostler.drivers.machines.qemu import dead_mans_switch
from hostler.drivers.machines.qemu.folder import ALIVE, GUEST_SOCKET, LOG, QMP_SOCKET, SERIAL_SOCKET
from hostler.drivers.machines.qemu.pid_lookup import Found, ProcessInfo, Run, holders, of_user, process_of_run, readable
from hostler.errors import Conflict, Unavailable
from hostler.kit.clock import boot_id
from hostler.kit.processes import environment, users_pids
from hostler.kit.tasks import run_to_end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hostler.drivers.machines.qemu.folder import MachineFolder

GUARD_WITHIN = 30.0
"""Seconds that a guard, a small Python program, may take to start."""
ENDS_WITHIN = 30.0
"""Seconds that a killed process may take to end."""
GLANCE = 0.02
"""Seconds between two checks where no event can be waited for."""
_LOCK_TRIES = 10
_children: dict[int, Path] = {}
"""Processes that this one started and has to reap, with their folders."""


def alive(folder: MachineFolder) -> bool:
    """Return whether the machine's process, or its guard, lives."""
    try:
        lock = os.open(ALIVE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder.descriptor)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise Unavailable(f"{folder.path / ALIVE}: cannot be opened: {error.strerror}; fix the cause") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(lock)


async def spawn(
    folder: MachineFolder,
    argv: Sequence[str],
    *,
    wrap: Callable[[list[str]], list[str]] = list,
    hold: Path | None = None,
    pass_fds: Sequence[int] = (),
) -> Run:
    """Run `argv` in the folder with the rights of `wrap`; with `hold`, under a guard that reads that file.

    Conflict: it already runs. Unavailable: it does not run, because it cannot or is not held; or, as the message says,
    it was killed and has not ended yet. After a cancellation no process is left either.
    """
    reap()
    lock = await _lock(folder)
    started = False
    try:
        folder.forget(QMP_SOCKET, SERIAL_SOCKET, GUEST_SOCKET)  # those of the run before: no process listens there
        if hold is None:
            pid = _start(folder, wrap(list(argv)), [lock, *pass_fds])
            started = True
            return Run(pid=pid, start_time=ProcessInfo.at(pid).start_time, boot_id=boot_id())
        heard = _start_guard(folder, wrap([*dead_mans_switch.WITH_GUARD, *argv]), hold, lock=lock, pass_fds=pass_fds)
        started = True
    except OSError as error:
        raise Unavailable(f"machine {folder.name}: {argv[0]} cannot be run: {error.strerror}; fix the cause") from None
    finally:
        if not started:
            fcntl.flock(lock, fcntl.LOCK_UN)  # closing alone is not enough: a child forked since then may have a copy
        os.close(lock)
    try:
        return await _read_report(folder, heard)
    except BaseException:
        await run_to_end(
            kill(folder, within=ENDS_WITHIN)
        )  # the caller does not learn of a process, so none may be left
        raise
    finally:
        os.close(heard)


def find(folder: MachineFolder, run: Run | None = None) -> Found | None:
    """Return the process, to be closed by the caller; None: there is none. `run` is a hint that is verified."""
    if not alive(folder):
        return None
    if (found := process_of_run(folder, run)) is not None:
        return found
    found_all = list(holders(folder))
    pids = {holder.pid for holder in found_all}
    found_all.sort(key=lambda holder: holder.parent not in pids)  # the child of a guard before the guard
    for other in found_all[1:]:
        other.close()
    return found_all[0] if found_all else None


async def kill(folder: MachineFolder, run: Run | None = None, *, uid: int | None = None, within: float) -> None:
    """Kill it, its guard, and everything else that runs as `uid`, the machine's own user.

    Returns when the lock is free and no process is left. Unavailable: one is still left.
    """
    try:
        async with asyncio.timeout(within):
            if (first := process_of_run(folder, run)) is not None:
                await _end([first])
            while alive(folder):
                if not await _end(holders(folder)):
                    await asyncio.sleep(GLANCE)
            while uid is not None and await _end(of_user(folder, uid, await asyncio.to_thread(users_pids, uid))):
                pass  # they may have started others since
            await _reap(folder)
    except TimeoutError:
        raise Unavailable(
            f"machine {folder.name}: its process was killed and has not ended within {within:g} s; check the storage of"
            " its node"
        ) from None
    finally:
        reap()


async def _end(those: Iterable[Found]) -> bool:
    """Kill processes and wait for their end; return whether there were any."""
    found = list(those)
    try:
        for one in found:
            one.kill()
        for one in found:
            await one.wait_until_ended()
    finally:
        for one in found:
            one.close()
    return bool(found)


async def wait_until_ended(folder: MachineFolder, run: Run | None = None) -> None:
    """Wait until neither the process nor its guard lives, including one that is started during the wait."""
    while alive(folder):
        found = find(folder, run)
        if found is None:
            await asyncio.sleep(10 * GLANCE)
        else:
            with found:
                await found.wait_until_ended()
    await _reap(folder)


def reap() -> None:
    """Reap ended processes that this one started, so that no zombies are left."""
    for pid in list(_children):
        try:
            ended_pid, _ = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            ended_pid = pid
        if ended_pid:
            _children.pop(pid, None)


async def _reap(folder: MachineFolder) -> None:
    """Reap the processes of the folder. The lock is free: a process releases it shortly before it can be reaped."""
    for pid, path in list(_children.items()):
        if path == folder.path:
            with contextlib.suppress(ProcessLookupError), Found(pid, 0, 0, os.pidfd_open(pid)) as child:
                await child.wait_until_ended()
    reap()


# Starting

_GUARD = (sys.executable, "-I", "-S", os.fspath(Path(dead_mans_switch.__file__).absolute()))


async def _lock(folder: MachineFolder) -> int:
    """Take the lock on a new descriptor."""
    try:
        lock = folder.open_ours(ALIVE)
    except OSError as error:
        raise Unavailable(f"{folder.path / ALIVE}: cannot be opened: {error.strerror}; fix the cause") from None
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Another process may be checking whether it is held.
            try:
                await asyncio.sleep(GLANCE)
            except BaseException:
                os.close(lock)
                raise
        else:
            return lock
    os.close(lock)
    raise Conflict(f"machine {folder.name}: already running; end that process first")


def _start(folder: MachineFolder, argv: list[str], pass_fds: Iterable[int]) -> int:
    """Start a process; return its id.

    It has its own session, so that a terminal or signal does not end it with the agent.
    """
    log = folder.open_ours(LOG, os.O_WRONLY | os.O_APPEND | os.O_TRUNC)
    try:
        child = subprocess.Popen(
            argv,
            cwd=folder.path,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            umask=0o077,
            pass_fds=tuple(pass_fds),
        )
    finally:
        os.close(log)
    child.returncode = 0  # so that `Popen` leaves it alone: `reap` waits for it
    _children[child.pid] = folder.path
    return child.pid


def _start_guard(folder: MachineFolder, argv: list[str], hold: Path, *, lock: int, pass_fds: Sequence[int]) -> int:
    """Start the guard; return the descriptor of its report."""
    look_at = os.path.relpath(hold, folder.path)
    close = ",".join(map(str, pass_fds))
    heard, report = os.pipe2(os.O_CLOEXEC)
    try:
        _start(folder, [*_GUARD, look_at, str(report), close, *argv], [lock, report, *pass_fds])
    except BaseException:
        os.close(heard)
        raise
    finally:
        os.close(report)
    return heard


async def _read_report(folder: MachineFolder, heard: int) -> Run:
    """Return the process that the guard reports."""
    try:
        async with asyncio.timeout(GUARD_WITHIN):
            await readable(heard)
    except TimeoutError:
        raise Unavailable(
            f"machine {folder.name}: its guard did not report within {GUARD_WITHIN:g} s and was killed; try again"
        ) from None
    text = os.read(heard, 4096).decode(errors="replace")
    if text == dead_mans_switch.NOT_HELD:
        raise Unavailable(f"machine {folder.name}: it is fenced and not held, so it does not start; hold it first")
    if text.startswith(dead_mans_switch.FAILED):
        raise Unavailable(
            f"machine {folder.name}: it cannot be run: {text.removeprefix(dead_mans_switch.FAILED).strip()}"
        )
    try:
        pid, start_time = map(int, text.split())
    except ValueError:
        raise Unavailable(f"machine {folder.name}: its guard ended: {folder.said() or 'no message'}") from None
    return Run(pid=pid, start_time=start_time, boot_id=boot_id())


_FIRST_PAUSE, _LONGEST_PAUSE, _GROWTH = 0.002, 0.05, 1.15
"""Pauses between two attempts. They grow slowly: a starting process listens after some tens of milliseconds."""


async def reach(folder: MachineFolder, name: str, *, within: float) -> socket.socket:
    """Connect to the socket `name` in the folder as soon as a process listens.

    Unavailable: none does, or it has ended.
    """
    pause = _FIRST_PAUSE
    why = "it does not exist"
    try:
        async with asyncio.timeout(within):
            while True:
                try:
                    return _connect_socket(folder, name)
                except (FileNotFoundError, ConnectionRefusedError, BlockingIOError) as error:
                    why = error.strerror or why
                if _over(folder):
                    raise Unavailable(f"machine {folder.name}: its process has ended: {folder.said() or 'no message'}")
                await asyncio.sleep(pause)
                pause = min(_GROWTH * pause, _LONGEST_PAUSE)
    except TimeoutError:
        raise Unavailable(f"machine {folder.name}: {name}: {why} for {within:g} s; its process hangs") from None
    except OSError as error:
        raise Unavailable(f"machine {folder.name}: {name}: {error.strerror or error}") from None


class Throttle:
    """Lets a transport read `rate` bytes per second on average, with bursts up to `burst`.

    `rest`: seconds after every read in which nothing is read, so that data that arrives byte by byte is read in pieces.
    """

    def __init__(self, rate: int, burst: int, *, rest: float = 0.0) -> None:
        self._rate, self._burst, self._rest = rate, burst, rest
        self._credit, self._counted_at = float(burst), 0.0
        self._resume: asyncio.TimerHandle | None = None

    def took(self, transport: asyncio.ReadTransport, size: int) -> None:
        """Account for `size` bytes that were read."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._credit = min(self._burst, self._credit + (now - self._counted_at) * self._rate) - size
        self._counted_at = now
        # Wait for credit for more than a few bytes: few large reads cost less than many small ones.
        wait = (self._burst / 4 - self._credit) / self._rate if self._credit < 0 else self._rest
        if wait > 0 and self._resume is None and not transport.is_closing():
            transport.pause_reading()
            self._resume = loop.call_later(wait, self._go_on, transport)

    def stop(self) -> None:
        """Stop; nothing more will be read."""
        if self._resume is not None:
            self._resume.cancel()
            self._resume = None

    def _go_on(self, transport: asyncio.ReadTransport) -> None:
        self._resume = None
        if not transport.is_closing():
            transport.resume_reading()


def _over(folder: MachineFolder) -> bool:
    """Return whether there was a process that has ended."""
    return (folder.path / ALIVE).exists() and not alive(folder)


def _connect_socket(folder: MachineFolder, name: str) -> socket.socket:
    # Through a descriptor of the socket itself: the owner of the folder could replace the name by a link to another
    # one.
    place = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder.descriptor)
    try:
        if not stat.S_ISSOCK(os.fstat(place).st_mode):
            raise ConnectionRefusedError(0, "it is not a socket")
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            connection.connect(f"/proc/self/fd/{place}")
        except BaseException:
            connection.close()
            raise
        return connection
    finally:
        os.close(place)
