"""Detects machines that changed by themselves."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from hostler.errors import HostlerError, TooManyTries

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from hostler.drivers.machines.hetzner.options import Pace
    from hostler.kit.clock import Clock
    from hostler.ports.machines import Machine

_log = logging.getLogger("hostler.machines")


class Watch:
    """Compares each listing with the previous one, and makes one itself when the last is too old."""

    def __init__(
        self,
        clock: Clock,
        pace: Pace,
        look: Callable[[], Awaitable[Sequence[Machine]]],
        *,
        skips: Callable[[str], bool],
        spares: Callable[[int], float],
    ) -> None:
        """Set up the watch.

        `skips(vm)`: whether a verb is changing the machine, so that no change is reported. `spares(machines)`: minimum
        seconds between two listings of that many machines, because of the rate limit.
        """
        self._clock, self._pace, self._look, self._skips, self._spares = clock, pace, look, skips, spares
        self._listeners: list[Callable[[str], None]] = []
        self._known: dict[str, str] = {}
        """Last status of each machine that listeners know of."""
        self._last: Sequence[Machine] | None = None
        self._looked_at = 0.0
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        self._known.clear()
        self._last = None
        self._task = asyncio.create_task(self._run(), name="hetzner: watching")

    async def aclose(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))

    def listen(self, changed: Callable[[str], None]) -> None:
        self._listeners.append(changed)

    def tell(self, vm: str) -> None:
        """Notify the listeners that a machine changed."""
        for changed in self._listeners:
            changed(vm)

    def changing(self, vm: str) -> None:
        """Record that a verb changes the machine. Unless `left` follows, the next listing reports it as changed."""
        self._known[vm] = ""
        self._last = None

    def left(self, vm: str, status: str) -> None:
        """Record the status that a verb left, so that it is not reported as a change."""
        self._known[vm] = status
        self._last = None

    def gone(self, vm: str) -> None:
        self._known.pop(vm, None)
        self._last = None

    def recent(self) -> Sequence[Machine] | None:
        """Return the last listing if nothing changed since and the rate limit forbids another one so soon."""
        if self._last is None or self._clock.now() - self._looked_at >= self._spares(len(self._last)):
            return None
        return self._last

    def saw(self, machines: Sequence[Machine]) -> None:
        """Take a listing of all machines and report what changed."""
        self._looked_at, self._last = self._clock.now(), machines
        now = {machine.label.vm: machine.cloud_status for machine in machines}
        busy = {vm: status for vm, status in self._known.items() if self._skips(vm)}
        news = [vm for vm, status in self._known.items() if vm not in busy and now.get(vm) != status]
        self._known = now | busy
        for vm in news:
            self.tell(vm)

    async def _run(self) -> None:
        while True:
            every = max(self._pace.watch_every, self._spares(len(self._known)))
            await self._clock.sleep(every)
            if self._clock.now() - self._looked_at < every or not self._listeners:
                continue
            try:
                await self._look()
            except TooManyTries as error:
                await self._clock.sleep(error.after)
            except HostlerError as error:
                _log.warning("Hetzner Cloud: cannot list the servers: %s", error)
