"""Two watchdogs: one ends a process that still does the work of a leader, one resets a host.

`hostler replica` ends when it loses its key, and its supervisor restarts it. `hostler up` has no supervisor: a laptop
that wakes up after an hour has lost its leadership, stops its leader work, and becomes a candidate again. Fences
prevent late writes of such a process. `Watchdog` ends the process if the work does not stop.

The guard process of each fenced machine stops it in time. The host's hardware watchdog covers failures that also stop
the guards: a host that hangs, and a process that survives SIGKILL. The event loop of the process with the agents feeds
it, as long as no fenced machine runs past its lease (`watched_host`).
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from hostler.engine.self_fencing import GRACE, overdue_at
from hostler.errors import HostlerError, Invalid, Unavailable
from hostler.ports.machines import OverdueFences, ability
from hostler.wiring import open_watchdog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from hostler.engine.elections import Leadership
    from hostler.engine.service import Standing
    from hostler.kit.clock import Clock
    from hostler.ports.machines import Machines
    from hostler.ports.power import HostWatchdog
    from hostler.settings import Settings


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
