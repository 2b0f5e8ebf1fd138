"""The host's hardware watchdog: resets the host if fenced machines run past their lease.

The guard process of each fenced machine stops it in time. The watchdog covers failures that also stop the guards: a
host that hangs, and a process that survives SIGKILL. The event loop of the process with the agents feeds it, as long as
no fenced machine runs past its lease.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from hostler.errors import HostlerError, Invalid, Unavailable
from hostler.ports.machines import OverdueFences, ability
from hostler.wiring import open_watchdog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from hostler.kit.clock import Clock
    from hostler.ports.machines import Machines
    from hostler.ports.power import HostWatchdog
    from hostler.settings import Settings

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
