"""The host's hardware watchdog: the host is reset when its fenced machines cannot be kept to their hold.

The guard of each fenced machine ends it in time. The watchdog is for what stops guards too: a host that hangs, and a
process that does not die although it was killed. It is fed by the event loop of the process with the agents, while no
fenced machine runs past its hold.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from hostler.errors import HostlerError, Invalid, Unavailable
from hostler.ports.machines import Fencing
from hostler.wiring import open_watchdog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from hostler.kit.clock import Clock
    from hostler.ports.machines import Machines
    from hostler.ports.power import HostWatchdog
    from hostler.settings import Settings

FEEDS = 4
"""How often it is fed in its time."""
LATE = 3.0
"""Seconds after the end of the hold by which a fenced machine has ended."""


@asynccontextmanager
async def watched_host(
    settings: Settings, machines: Iterable[Machines], clock: Clock, tell: Callable[[str], None]
) -> AsyncIterator[None]:
    """Feed the watchdog of the settings, if there is one, for these machines; disarm it at an orderly end.

    An error is no orderly end: then the host is reset, unless the process is back in time. Unavailable, Invalid: there
    can be no such watchdog.
    """
    path = settings.watchdog
    if path is None:
        yield
        return
    fencing = [each for each in machines if isinstance(each, Fencing)]
    if not fencing:
        raise Invalid(
            f"watchdog {path}: machines of kind {settings.machines} are not fenced by this host, so it would guard"
            ' nothing; use machines = "qemu", or take `watchdog` out of the settings'
        )
    device = open_watchdog(path, timeout=settings.fencing_time)
    try:
        _check_timeout(settings, device)
        tell(f"watchdog {path}: it resets this host {device.timeout:g} s after it was last fed")
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
    """The leader starts fenced machines elsewhere no earlier than this after the last heartbeat."""
    limit = settings.fencing_time + settings.node_ttl
    if device.timeout > limit:
        device.disarm()
        raise Unavailable(
            f"watchdog {settings.watchdog}: it resets the host after {device.timeout:g} s and no earlier, but machines"
            f" may be started elsewhere after {limit:g} s; raise fencing_time, or use another device"
        )


async def _feed(device: HostWatchdog, fencing: Sequence[Fencing], clock: Clock, tell: Callable[[str], None]) -> None:
    told = ""
    while True:
        problem = ""
        try:
            overdue = [vm for each in fencing for vm in await each.overdue(LATE)]
            if overdue:
                problem = f"fenced machines run past their hold: {', '.join(overdue)}"
            else:
                device.feed()
        except HostlerError as error:
            problem = str(error)
        if problem and problem != told:
            tell(f"watchdog: {problem}; it is not fed, and resets this host after {device.timeout:g} s")
        told = problem
        await clock.sleep(device.timeout / FEEDS)
