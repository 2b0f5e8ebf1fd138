"""Tells of machines that changed by themselves."""

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
    """Compares each look at all machines with the one before; makes one itself if nobody else did for a while."""

    def __init__(
        self,
        clock: Clock,
        pace: Pace,
        look: Callable[[], Awaitable[Sequence[Machine]]],
        *,
        skips: Callable[[str], bool],
        spares: Callable[[int], float],
    ) -> None:
        """`skips(vm)`: somebody is changing it, so it does not change by itself. `spares(machines)`: the seconds that
        must be between two looks at so many, for the sake of the calls that are allowed."""
        self._clock, self._pace, self._look, self._skips, self._spares = clock, pace, look, skips, spares
        self._listeners: list[Callable[[str], None]] = []
        self._known: dict[str, str] = {}
        """The last status of each that somebody was told of."""
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
        """It has changed."""
        for changed in self._listeners:
            changed(vm)

    def changing(self, vm: str) -> None:
        """A verb changes it. What it leaves is not known before it says so, and is then told of at the next look."""
        self._known[vm] = ""
        self._last = None

    def left(self, vm: str, status: str) -> None:
        """What a verb has left is no news."""
        self._known[vm] = status
        self._last = None

    def gone(self, vm: str) -> None:
        self._known.pop(vm, None)
        self._last = None

    def recent(self) -> Sequence[Machine] | None:
        """The last look, if nothing was changed since, and calls must be spared."""
        if self._last is None or self._clock.now() - self._looked_at >= self._spares(len(self._last)):
            return None
        return self._last

    def saw(self, machines: Sequence[Machine]) -> None:
        """What there is now."""
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
                _log.warning("Hetzner Cloud: the servers cannot be listed: %s", error)
