"""The process of a machine: whether it lives, which one it is, and its end.

It lives exactly as long as the lock on the file `alive` is held: it inherits a descriptor that holds it, as its guard
does, and nobody else. That is true whatever happened to the agent, and needs no process id. An id is needed to send
signals. It is written down with the process's start time, and believed only of a process that has this start time and
works in the machine's folder; otherwise the process is looked for among all. Signals go to a descriptor of the process
that was opened before these looks, so an id that was given to somebody else meanwhile is never hit.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec

from hostler.drivers.machines.qemu import guard
from hostler.drivers.machines.qemu.folder import ALIVE, GUEST_SOCKET, LOG, QMP_SOCKET, SERIAL_SOCKET
from hostler.errors import Conflict, Unavailable, Uncertain
from hostler.kit.clock import boot_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    from hostler.drivers.machines.qemu.folder import MachineFolder

GUARD_WITHIN = 30.0
"""Seconds in which a guard, a small Python program, has started or has not."""
GLANCE = 0.02
"""Seconds until another look where nothing can be waited for."""
_LOCK_TRIES = 10
_children: dict[int, Path] = {}
"""Processes that this one started and has to reap, and the folder of each."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a machine's process: no other process of this host ever has the same."""

    pid: int
    start_time: int
    """In the kernel's ticks since the host's boot."""
    boot_id: str


class Found:
    """A process, held by a descriptor: the number may be given to another one, the descriptor never is."""

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

    async def ended(self) -> None:
        """Until it has; one that nobody has reaped yet has ended too."""
        await _readable(self.descriptor)

    def close(self) -> None:
        os.close(self.descriptor)


def alive(folder: MachineFolder) -> bool:
    """Whether the machine's process, or its guard, is there."""
    try:
        lock = os.open(ALIVE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder.descriptor)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise Unavailable(f"{folder.path / ALIVE}: cannot be opened: {error.strerror}; see to it") from None
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
    """Run `argv` in the folder, with the rights that `wrap` gives it; with `hold`, under a guard that looks there.

    Conflict: it runs already. Unavailable: it does not run, for it cannot, or is not held. Uncertain: see `alive`.
    """
    reap()
    lock = await _lock(folder)
    started = False
    try:
        folder.forget(QMP_SOCKET, SERIAL_SOCKET, GUEST_SOCKET)  # those of the run before: nobody listens there
        if hold is None:
            pid = _start(folder, wrap(list(argv)), [lock, *pass_fds])
            started = True
            return Run(pid=pid, start_time=_Look.at(pid).start_time, boot_id=boot_id())
        heard, report = os.pipe2(os.O_CLOEXEC)
        try:
            _start_guard(folder, wrap([*guard.WITH_GUARD, *argv]), hold, lock=lock, report=report, pass_fds=pass_fds)
            started = True
            os.close(report)
            report = -1
            return await _reported(folder, heard)
        finally:
            os.close(heard)
            if report >= 0:
                os.close(report)
    except OSError as error:
        raise Unavailable(f"machine {folder.name}: {argv[0]} cannot be run: {error.strerror}; see to it") from None
    finally:
        if not started:
            fcntl.flock(lock, fcntl.LOCK_UN)  # not by closing alone: a child forked meanwhile may have a copy
        os.close(lock)


def find(folder: MachineFolder, run: Run | None = None) -> Found | None:
    """The process, to be closed; None: there is none. What `run` says is a hint that is checked."""
    if not alive(folder):
        return None
    if (found := _believed(folder, run)) is not None:
        return found
    holders = list(_holders(folder))
    pids = {holder.pid for holder in holders}
    holders.sort(key=lambda holder: holder.parent not in pids)  # the child of a guard before the guard
    for other in holders[1:]:
        other.close()
    return holders[0] if holders else None


async def kill(folder: MachineFolder, run: Run | None = None, *, within: float) -> None:
    """End it, and its guard, by force; returns when the lock is free. Unavailable: it is not yet."""
    try:
        async with asyncio.timeout(within):
            first = _believed(folder, run) if alive(folder) else None
            if first is not None:
                with first:
                    first.kill()
                    await first.ended()
            while alive(folder):
                holders = list(_holders(folder))
                try:
                    for holder in holders:
                        holder.kill()
                    for holder in holders:
                        await holder.ended()
                finally:
                    for holder in holders:
                        holder.close()
                if not holders:
                    await asyncio.sleep(GLANCE)
            await _reaped(folder)
    except TimeoutError:
        raise Unavailable(
            f"machine {folder.name}: its process was killed and has not ended within {within:g} s; a disk may hang,"
            " see its node"
        ) from None
    finally:
        reap()


async def ended(folder: MachineFolder, run: Run | None = None) -> None:
    """Until neither the process nor its guard is there; one that is started meanwhile counts too."""
    while alive(folder):
        found = find(folder, run)
        if found is None:
            await asyncio.sleep(10 * GLANCE)
        else:
            with found:
                await found.ended()
    await _reaped(folder)


def reap() -> None:
    """Take note of the end of processes that this one started, or they would be listed for ever."""
    for pid in list(_children):
        try:
            ended_pid, _ = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            ended_pid = pid
        if ended_pid:
            _children.pop(pid, None)


async def _reaped(folder: MachineFolder) -> None:
    """The lock is free: a process lets go of it shortly before it can be reaped."""
    for pid, path in list(_children.items()):
        if path == folder.path:
            with contextlib.suppress(ProcessLookupError), Found(pid, 0, 0, os.pidfd_open(pid)) as child:
                await child.ended()
    reap()


# Starting

_GUARD = (sys.executable, "-I", "-S", os.fspath(Path(guard.__file__).absolute()))


async def _lock(folder: MachineFolder) -> int:
    """The lock, taken, on a descriptor of its own."""
    try:
        lock = folder.open_ours(ALIVE)
    except OSError as error:
        raise Unavailable(f"{folder.path / ALIVE}: cannot be opened: {error.strerror}; see to it") from None
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Somebody may just be looking whether it is held.
            try:
                await asyncio.sleep(GLANCE)
            except BaseException:
                os.close(lock)
                raise
        else:
            return lock
    os.close(lock)
    raise Conflict(f"machine {folder.name}: it runs already; end that process first")


def _start(folder: MachineFolder, argv: list[str], pass_fds: Iterable[int]) -> int:
    """The id of the new process. It is a session of its own: what ends us, by terminal or signal, does not end it."""
    log = folder.open_ours(LOG, os.O_WRONLY | os.O_APPEND | os.O_TRUNC)
    try:
        child = subprocess.Popen(
            argv,
            cwd=folder.path,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},  # what else is in ours may be secret
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            umask=0o077,
            pass_fds=tuple(pass_fds),
        )
    finally:
        os.close(log)
    child.returncode = 0  # so that it is left alone when the object goes: `reap` sees to it
    _children[child.pid] = folder.path
    return child.pid


def _start_guard(
    folder: MachineFolder, argv: list[str], hold: Path, *, lock: int, report: int, pass_fds: Sequence[int]
) -> None:
    look_at = os.path.relpath(hold, folder.path)
    close = ",".join(map(str, pass_fds))
    _start(folder, [*_GUARD, look_at, str(report), close, *argv], [lock, report, *pass_fds])


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


async def _reported(folder: MachineFolder, heard: int) -> Run:
    """What the guard says of the process it started."""
    try:
        async with asyncio.timeout(GUARD_WITHIN):
            await _readable(heard)
    except TimeoutError:
        raise Uncertain(f"machine {folder.name}: its guard said nothing within {GUARD_WITHIN:g} s") from None
    text = os.read(heard, 4096).decode(errors="replace")
    if text == guard.NOT_HELD:
        raise Unavailable(f"machine {folder.name}: it is fenced and not held, so it does not start; hold it first")
    if text.startswith(guard.FAILED):
        raise Unavailable(f"machine {folder.name}: it cannot be run: {text.removeprefix(guard.FAILED).strip()}")
    try:
        pid, start_time = map(int, text.split())
    except ValueError:
        raise Uncertain(f"machine {folder.name}: its guard ended: {folder.said() or 'it left no word'}") from None
    return Run(pid=pid, start_time=start_time, boot_id=boot_id())


# Finding


class _Look(msgspec.Struct, frozen=True):
    """What the kernel says of a process."""

    state: str
    parent: int
    start_time: int

    @classmethod
    def at(cls, pid: int) -> _Look:
        """ProcessLookupError: there is none."""
        try:
            text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            raise ProcessLookupError(pid) from None
        words = text.rpartition(")")[2].split()
        return cls(words[0], int(words[1]), int(words[19]))


def _believed(folder: MachineFolder, run: Run | None) -> Found | None:
    """The process that `run` names, if it is that one."""
    if run is None or run.boot_id != boot_id():
        return None
    return _held(folder, run.pid, run.start_time)


def _holders(folder: MachineFolder) -> Iterator[Found]:
    """All processes in which the machine lives: itself and its guard."""
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid():
            found = _held(folder, int(name), None)
            if found is not None:
                yield found


def _held(folder: MachineFolder, pid: int, start_time: int | None) -> Found | None:
    """The process of that number, if it is one of the machine."""
    if start_time is None and not _may_be_in(folder, pid):  # most are not, and a descriptor costs more than this look
        return None
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return None
    try:
        look = _Look.at(pid)
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
    """Whether it works in the folder. Where we may not look (a container without that right), its user decides."""
    try:
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
    """A machine with a user of its own has its folder in that user's group (`rights`)."""
    group = os.stat(folder.descriptor).st_gid
    return group not in (0, os.getegid()) and os.stat(f"/proc/{pid}").st_uid == group
