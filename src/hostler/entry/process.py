"""What every process of Hostler sets up: signals, the limit of open files, a log file of limited size, watchdogs.

The first SIGTERM or SIGINT starts a shutdown, the second ends the process; SIGHUP reloads certificates.

There are two watchdogs: one ends a process that still does the work of a leader, one resets a host. `hostler replica`
ends when it loses its key, and its supervisor restarts it. `hostler up` has no supervisor: a laptop that wakes up after
an hour has lost its leadership, stops its leader work, and becomes a candidate again. Fences prevent late writes of
such a process. `Watchdog` ends the process if the work does not stop.

The guard process of each fenced machine stops it in time. The host's hardware watchdog covers failures that also stop
the guards: a host that hangs, and a process that survives SIGKILL. The event loop of the process with the agents feeds
it, as long as no fenced machine runs past its lease (`watched_host`).
"""

from __future__ import annotations

import asyncio
import os
import resource
import select
import signal
import threading
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hostler.engine.self_fencing import GRACE, overdue_at
from hostler.errors import HostlerError, Invalid, Unavailable
from hostler.kit.connections import ConnectionLimits, limits_of, open_file_limit
from hostler.ports.machine_driver import Finding, Level
from hostler.ports.machines import OverdueFences, ability
from hostler.wiring import open_watchdog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence

    from hostler.engine.elections import Leadership
    from hostler.engine.service import Standing
    from hostler.entry.data_dir import DataFolder
    from hostler.kit.clock import Clock
    from hostler.ports.machines import Machines
    from hostler.ports.power import HostWatchdog
    from hostler.settings import Settings


class Reloads(Protocol):
    """A server that can reload its certificate."""

    def reload_certificate(self) -> bool: ...


SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def asked_to_end() -> Iterator[asyncio.Event]:
    """Yield an event that the first signal sets. A second signal ends the process at once, which is crash-safe."""
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()

    def received(number: int) -> None:
        if asked.is_set():
            os._exit(128 + number)
        asked.set()

    for number in SIGNALS:
        loop.add_signal_handler(number, received, number)
    try:
        yield asked
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


@contextmanager
def on_hangup(reload: Callable[[], None]) -> Iterator[None]:
    """Call `reload` on SIGHUP instead of ending the process."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, reload)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


def reload_certificates(servers: Iterable[Reloads], tell: Callable[[str], None]) -> None:
    """Reload the certificates of all servers, and report the result."""
    try:
        reloaded = [server.reload_certificate() for server in servers]
    except HostlerError as error:
        tell(f"SIGHUP: {error}; the previous certificate is still in use")
        return
    tell("SIGHUP: certificates reloaded" if any(reloaded) else "SIGHUP: no certificate to reload")


async def run_unless_asked(
    name: str, asked: asyncio.Event, started: asyncio.Event, work: Coroutine[Any, Any, int]
) -> int:
    """Return the exit code of `work`; cancel it and return 0 if `asked` is set before `started`.

    After `started`, `work` handles `asked` itself. So a shutdown request does not wait for a store that does not
    answer.
    """
    working = asyncio.create_task(work, name=name)
    waiting = asyncio.create_task(asked.wait(), name=f"{name}: asked to end")
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not working.done() and not started.is_set():
            working.cancel()
            await asyncio.wait((working,))
        return 0 if working.done() and working.cancelled() else await working
    finally:
        for task in (working, waiting):
            task.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)


MOST = 1 << 20
"""The kernel's default maximum for a process."""
ENOUGH = 16_384
"""Below this, the file limit rather than the settings limits the number of connections."""
ADVICE = "set LimitNOFILE=65536 in the unit, or ulimit -Hn 65536 before the start"


def raise_open_files(tell: Callable[[str], object]) -> int:
    """Raise the soft limit of open files to the hard limit, and report both. Return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    limit = open_file_limit()
    low = f"; this is low: {ADVICE}" if limit < ENOUGH else ""
    tell(f"open files: at most {limit} (initially {soft}){low}")
    return limit


def api_limits(settings: Settings) -> ConnectionLimits:
    """Return the limits of connections to the API: at most half of all files."""
    return _limits(settings, 2)


def relay_limits(settings: Settings) -> ConnectionLimits:
    """Return the limits of connections to an agent's relay: at most a quarter of all files."""
    return _limits(settings, 4)


def _limits(settings: Settings, part: int) -> ConnectionLimits:
    return limits_of(settings.max_connections, settings.max_connections_per_address).within(open_file_limit() // part)


def examine_open_files(folder: DataFolder) -> Finding:
    """Return the `hostler doctor` finding about the limit of the running process, or of a process started here."""
    holder = folder.holder()
    limit = None if holder is None else _limit_of(holder)
    whose = f"process {holder}"
    if limit is None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit, whose = MOST if hard == resource.RLIM_INFINITY else hard, "a process started here"
    what = f"{whose} may open {limit:,}"
    return Finding("open files", Level.OK, what) if limit >= ENOUGH else Finding("open files", Level.WARN, what, ADVICE)


def _limit_of(process: int) -> int | None:
    """Return the soft limit of a process; None: it has ended, or /proc is not readable."""
    try:
        lines = Path(f"/proc/{process}/limits").read_text(encoding="ascii").splitlines()
        soft = next(line.split()[3] for line in lines if line.startswith("Max open files"))
    except (OSError, StopIteration, IndexError):
        return None
    return MOST if soft == "unlimited" else int(soft)


SIZE_BYTES = 10 * 2**20
KEPT = 5


class RotatingFile:
    """Writes to `path`; a full file becomes `path.1`, the previous `path.1` becomes `path.2`, and so on.

    On a full disk, log lines are lost; writing raises no error.
    """

    def __init__(self, path: Path, *, size_bytes: int = SIZE_BYTES, kept: int = KEPT) -> None:
        self._path, self._size, self._kept = path, size_bytes, kept
        self._descriptor = self._open()
        self._written = os.fstat(self._descriptor).st_size

    def write(self, text: str) -> int:
        """Write one or more whole lines."""
        data = text.encode(errors="backslashreplace")
        try:
            if self._written and self._written + len(data) > self._size:
                self._rotate()
            self._written += os.write(self._descriptor, data)
        except OSError:
            pass
        return len(text)

    def flush(self) -> None:
        """Do nothing: writes are not buffered."""

    def close(self) -> None:
        os.close(self._descriptor)

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _rotate(self) -> None:
        for number in range(self._kept - 1, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{number}")
            if older.exists():
                older.replace(self._path.with_name(f"{self._path.name}.{number + 1}"))
        self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        os.close(self._descriptor)
        self._descriptor = self._open()
        self._written = 0


LOOK = 0.25


class Watchdog:
    """A killer that counts the grace period only while the process is awake: in consecutive short checks.

    It is the first of the controllers, so it is stopped after all others, which is the end of the work. Cleaning up
    after that may take longer than the grace period while the store is unreachable.
    """

    name = "watchdog"

    def __init__(self, clock: Clock, *, end: Callable[[str], None] | None = None) -> None:
        self._clock, self._end = clock, end or _end
        self._guarded: dict[Leadership, float] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def guard(self, leadership: Leadership) -> None:
        """End the process if the leadership is over and `stopped` is not called in time."""
        with self._changed:
            self._guarded[leadership] = 0.0
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="hostler watchdog", daemon=True)
                self._thread.start()
            self._changed.notify()

    def stopped(self) -> None:
        """Stop watching every leadership so far: its work has stopped."""
        with self._changed:
            self._guarded.clear()
            self._changed.notify()

    # Service

    async def start(self, standing: Standing) -> None:
        """Do nothing: `guard` was called with the leadership before."""

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def stop(self) -> None:
        self.stopped()

    # Internal

    def _watch(self) -> None:
        with self._changed:
            while self._guarded:
                pause = min((LOOK, *(each.ttl / GRACE / 4 for each in self._guarded)))
                self._changed.wait(pause)
                self._guarded = {each: seen for each, seen in self._guarded.items() if not each.released}
                for each in self._guarded:
                    # Each check counts at most one pause, however long the process was suspended in between.
                    late = overdue_at(each) - each.ttl / GRACE <= self._clock.now()
                    self._guarded[each] = self._guarded[each] + pause if late else 0.0
                    if self._guarded[each] > each.ttl / GRACE:
                        self._end(
                            f"leadership {each.key} was lost and its work did not stop in time; ending the process"
                        )
            self._thread = None


def _end(why: str) -> None:
    with suppress(Exception):  # the process must end even if its output cannot be written
        if select.select([], [2], [], 0)[1]:
            os.write(2, f"hostler: {time.strftime('%H:%M:%S')} {why}\n".encode())
    os._exit(1)


FEEDS = 4
"""Feeds per watchdog timeout."""
LATE = 3.0
"""Seconds after the end of its lease within which a fenced machine must have stopped."""


@asynccontextmanager
async def watched_host(
    settings: Settings, machines: Iterable[Machines], clock: Clock, tell: Callable[[str], None]
) -> AsyncIterator[None]:
    """Feed the watchdog of the settings, if there is one, for these machines; disarm it on a normal exit.

    After an error the watchdog stays armed: it resets the host unless the process is restarted in time. Unavailable,
    Invalid: the watchdog cannot be used with these settings.
    """
    path = settings.watchdog
    if path is None:
        yield
        return
    fencing = [found for each in machines if (found := ability(each, OverdueFences)) is not None]
    if not fencing:
        raise Invalid(
            f"watchdog {path}: machines of kind {settings.machines} are not fenced by this host, so the watchdog has"
            " nothing to guard; use machines that this host fences, or remove `watchdog` from the settings"
        )
    device = open_watchdog(path, timeout=settings.fencing_time)
    try:
        _check_timeout(settings, device)
        tell(f"watchdog {path}: resets this host {device.timeout:g} s after the last feed")
        feeding = asyncio.create_task(_feed(device, fencing, clock, tell), name="watchdog: feeding")
        try:
            yield
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
        device.disarm()
    finally:
        device.close()


def _check_timeout(settings: Settings, device: HostWatchdog) -> None:
    """Check that the host is reset before the leader may start its fenced machines elsewhere."""
    limit = settings.fencing_time + settings.node_ttl
    if device.timeout > limit:
        device.disarm()
        raise Unavailable(
            f"watchdog {settings.watchdog}: its shortest timeout is {device.timeout:g} s, but machines"
            f" may be started elsewhere after {limit:g} s; raise fencing_time, or use another device"
        )


async def _feed(
    device: HostWatchdog, fencing: Sequence[OverdueFences], clock: Clock, tell: Callable[[str], None]
) -> None:
    told = ""
    while True:
        problem = ""
        try:
            overdue = [vm for each in fencing for vm in await each.overdue(LATE)]
            if overdue:
                problem = f"fenced machines run past their lease: {', '.join(overdue)}"
            else:
                device.feed()
        except HostlerError as error:
            problem = str(error)
        if problem and problem != told:
            tell(f"watchdog: {problem}; the watchdog is no longer fed and resets this host in {device.timeout:g} s")
        told = problem
        await clock.sleep(device.timeout / FEEDS)
