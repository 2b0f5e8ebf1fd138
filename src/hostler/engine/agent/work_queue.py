"""The work queue of an agent: machines to process now or later, at most one task per machine."""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from hostler.kit.timeouts import Nap

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from hostler.kit.clock import Clock

AGAIN = 60.0
"""Seconds after which a machine is processed again when its worker ended with an unexpected error."""
_log = logging.getLogger("hostler.agent")


class AgentWorkQueue:
    """Calls `work(vm)` in up to `slots` concurrent tasks. It makes no calls before `run` or after `aclose`."""

    def __init__(
        self,
        work: Callable[[str], Coroutine[Any, Any, None]],
        *,
        clock: Clock,
        slots: int,
        boots: int,
        what: str = "machine",
    ) -> None:
        self._what = what
        self._work, self._clock, self._slots, self._boots = work, clock, slots, boots
        # Items are taken from the front. In a plain dict this would scan all entries that were removed before.
        self._due: OrderedDict[str, None] = OrderedDict()
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._later: dict[str, float] = {}
        self._timers: list[tuple[float, str]] = []  # a heap; entries that differ from `_later` are out of date
        self._sooner = asyncio.Event()
        self._nap = Nap(clock)
        self._booting: set[str] = set()
        self._to_boot: OrderedDict[str, None] = OrderedDict()
        self._open = False
        self.turns = 0
        """Number of worker starts and ends."""

    @property
    def working(self) -> int:
        """Number of machines being processed."""
        return len(self._busy)

    @property
    def waiting(self) -> int:
        """Number of machines waiting for a worker, a boot slot or their time."""
        return len(self._due) + len(self._later) + len(self._to_boot)

    def has(self, vm: str) -> bool:
        """Return whether the machine is queued, scheduled or being processed."""
        return vm in self._due or vm in self._busy or vm in self._later or vm in self._to_boot

    def kick(self, vm: str) -> None:
        """Queue a machine; it is processed again if a worker is already running."""
        self._later.pop(vm, None)
        self._due[vm] = None
        self._pump()

    def later(self, vm: str, at: float) -> None:
        """Schedule a machine for that time, unless it is already scheduled earlier."""
        if vm in self._due or self._later.get(vm, at + 1.0) <= at:
            return
        self._later[vm] = at
        heapq.heappush(self._timers, (at, vm))
        if self._timers[0][1] == vm:
            self._sooner.set()
            self._nap.wake()

    def taken(self, vm: str) -> None:
        """Record that its worker now reads the current state, which covers all earlier `kick` calls."""
        self._due.pop(vm, None)
        self._later.pop(vm, None)

    def boot(self, vm: str) -> bool:
        """Take one of the boot slots; False: the machine is queued again when a slot is free."""
        if vm not in self._booting and len(self._booting) >= self._boots:
            self._to_boot[vm] = None
            return False
        self._booting.add(vm)
        return True

    def booted(self, vm: str) -> None:
        """Release the boot slot, if the machine has one."""
        self._booting.discard(vm)

    async def run(self) -> None:
        """Process timers until cancelled."""
        self._open = True
        self._pump()
        while True:
            self._sooner.clear()
            now = self._clock.now()
            while self._timers and self._timers[0][0] <= now:
                at, vm = heapq.heappop(self._timers)
                if self._later.get(vm) == at:
                    self.kick(vm)
            if self._timers:
                await self._nap.sleep(max(0.0, self._timers[0][0] - now))
            else:
                await self._sooner.wait()

    async def stop(self, vms: list[str]) -> None:
        """Cancel the workers of these machines, wait until they have ended, and queue the machines again."""
        tasks = [self._busy[vm] for vm in vms if vm in self._busy]
        for vm in vms:
            self._due[vm] = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def aclose(self) -> None:
        """Cancel all workers and wait until they have ended."""
        self._open = False
        tasks = list(self._busy.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # Internals

    def _pump(self) -> None:
        if not self._open:
            return
        while self._due and len(self._busy) < self._slots:
            vm = next((vm for vm in self._due if vm not in self._busy), None)
            if vm is None:
                return
            del self._due[vm]
            task = asyncio.create_task(self._work(vm), name=f"{self._what} {vm}")
            self._busy[vm] = task
            self.turns += 1
            task.add_done_callback(lambda task, vm=vm: self._ended(vm, task))  # type: ignore[misc]

    def _ended(self, vm: str, task: asyncio.Task[None]) -> None:
        del self._busy[vm]
        self.turns += 1
        self._booting.discard(vm)
        if not task.cancelled() and task.exception() is not None:
            _log.error("%s %s: its worker failed; trying again later", self._what, vm, exc_info=task.exception())
            self.later(vm, self._clock.now() + AGAIN)
        # After every worker, not only after those that booted: the next machine may no longer need its slot.
        if self._to_boot and len(self._booting) < self._boots:
            following = next(iter(self._to_boot))
            del self._to_boot[following]
            self.kick(following)
        self._pump()
