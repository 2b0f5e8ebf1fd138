"""The process of a machine: whether it lives, its start and its end.

It lives exactly as long as the lock on the file `alive` is held: it inherits a descriptor that holds it, as its guard
does, and nobody else. That is true whatever happened to the agent, and needs no process id. An id is needed to send
signals (`finding`). A QEMU that a guest has taken over can let go of the lock; so who ends a machine ends all that runs
as its user, whatever the lock says.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hostler.drivers.machines.qemu import dead_mans_switch
from hostler.drivers.machines.qemu.folder import ALIVE, GUEST_SOCKET, LOG, QMP_SOCKET, SERIAL_SOCKET
from hostler.drivers.machines.qemu.pid_lookup import Found, Look, Run, believed, holders, of_user, readable, users_pids
from hostler.drivers.machines.qemu.privileges import environment
from hostler.drivers.machines.qemu.shielded import whole
from hostler.errors import Conflict, Unavailable
from hostler.kit.clock import boot_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hostler.drivers.machines.qemu.folder import MachineFolder

GUARD_WITHIN = 30.0
"""Seconds in which a guard, a small Python program, has started or has not."""
ENDS_WITHIN = 30.0
"""Seconds in which a process that was killed is gone."""
GLANCE = 0.02
"""Seconds until another look where nothing can be waited for."""
_LOCK_TRIES = 10
_children: dict[int, Path] = {}
"""Processes that this one started and has to reap, and the folder of each."""


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

    Conflict: it runs already. Unavailable: it does not run, for it cannot, or is not held; or, as that says, it was
    killed and has not ended yet. Cancelled, there is no process either.
    """
    reap()
    lock = await _lock(folder)
    started = False
    try:
        folder.forget(QMP_SOCKET, SERIAL_SOCKET, GUEST_SOCKET)  # those of the run before: nobody listens there
        if hold is None:
            pid = _start(folder, wrap(list(argv)), [lock, *pass_fds])
            started = True
            return Run(pid=pid, start_time=Look.at(pid).start_time, boot_id=boot_id())
        heard = _start_guard(folder, wrap([*dead_mans_switch.WITH_GUARD, *argv]), hold, lock=lock, pass_fds=pass_fds)
        started = True
    except OSError as error:
        raise Unavailable(f"machine {folder.name}: {argv[0]} cannot be run: {error.strerror}; see to it") from None
    finally:
        if not started:
            fcntl.flock(lock, fcntl.LOCK_UN)  # not by closing alone: a child forked meanwhile may have a copy
        os.close(lock)
    try:
        return await _reported(folder, heard)
    except BaseException:
        await whole(kill(folder, within=ENDS_WITHIN))  # who asked for it knows of none, so there must be none
        raise
    finally:
        os.close(heard)


def find(folder: MachineFolder, run: Run | None = None) -> Found | None:
    """The process, to be closed; None: there is none. What `run` says is a hint that is checked."""
    if not alive(folder):
        return None
    if (found := believed(folder, run)) is not None:
        return found
    found_all = list(holders(folder))
    pids = {holder.pid for holder in found_all}
    found_all.sort(key=lambda holder: holder.parent not in pids)  # the child of a guard before the guard
    for other in found_all[1:]:
        other.close()
    return found_all[0] if found_all else None


async def kill(folder: MachineFolder, run: Run | None = None, *, uid: int | None = None, within: float) -> None:
    """End it, and its guard, by force, and all else that runs as `uid`, the machine's own user.

    Returns when the lock is free and nothing of it is left. Unavailable: something is yet.
    """
    try:
        async with asyncio.timeout(within):
            if (first := believed(folder, run)) is not None:
                await _end([first])
            while alive(folder):
                if not await _end(holders(folder)):
                    await asyncio.sleep(GLANCE)
            while uid is not None and await _end(of_user(folder, uid, await asyncio.to_thread(users_pids, uid))):
                pass  # they may have made others meanwhile
            await _reaped(folder)
    except TimeoutError:
        raise Unavailable(
            f"machine {folder.name}: its process was killed and has not ended within {within:g} s; a disk may hang,"
            " see its node"
        ) from None
    finally:
        reap()


async def _end(those: Iterable[Found]) -> bool:
    """Kill them and wait for their end; whether there were any."""
    found = list(those)
    try:
        for one in found:
            one.kill()
        for one in found:
            await one.ended()
    finally:
        for one in found:
            one.close()
    return bool(found)


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

_GUARD = (sys.executable, "-I", "-S", os.fspath(Path(dead_mans_switch.__file__).absolute()))


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
    child.returncode = 0  # so that it is left alone when the object goes: `reap` sees to it
    _children[child.pid] = folder.path
    return child.pid


def _start_guard(folder: MachineFolder, argv: list[str], hold: Path, *, lock: int, pass_fds: Sequence[int]) -> int:
    """The descriptor on which it is heard."""
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


async def _reported(folder: MachineFolder, heard: int) -> Run:
    """What the guard says of the process it started."""
    try:
        async with asyncio.timeout(GUARD_WITHIN):
            await readable(heard)
    except TimeoutError:
        raise Unavailable(
            f"machine {folder.name}: its guard said nothing within {GUARD_WITHIN:g} s, so it was ended; try again"
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
        raise Unavailable(f"machine {folder.name}: its guard ended: {folder.said() or 'it left no word'}") from None
    return Run(pid=pid, start_time=start_time, boot_id=boot_id())
