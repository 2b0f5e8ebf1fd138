"""Asyncio on virtual time, deterministic for a seed.

Time stands still while anything can run and jumps to the next timer when nothing can, so an hour of waiting costs
nothing. Callbacks that are ready at the same instant run in an order drawn from the seed: every order that a real event
loop could produce by chance can be produced on purpose, and produced again. When nothing can run and no timer is set,
nothing ever will: that is a `Deadlock`, and says who waits.

No sockets, threads or subprocesses: whatever runs here takes its outside world through ports.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


_NO_THREADS = "a loop on virtual time knows no threads: what they do is not deterministic; use a port instead"


class Deadlock(RuntimeError):
    """Everything waits, and nothing is left that could wake it."""


class Leftover(RuntimeError):
    """Tasks were still running when the program had ended."""


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop whose time is a number."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.rng = random.Random(seed)  # noqa: S311 - chooses an order; guards nothing
        self.steps = 0
        self._now = 0.0
        self._clock_resolution = 0.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        """One round: let time jump if it must, then run what is ready, in a drawn order."""
        ready: Any = self._ready  # type: ignore[attr-defined]
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        self._drop_cancelled(timers)
        if not ready:
            if not timers:
                raise Deadlock(self._who_waits())
            self._now = max(self._now, timers[0].when())
        while timers and timers[0].when() <= self._now:
            timer = heapq.heappop(timers)
            timer._scheduled = False  # type: ignore[attr-defined]
            if not timer.cancelled():
                ready.append(timer)
        handles = self._admitted(list(ready))
        ready.clear()
        if len(handles) > 1:
            self.rng.shuffle(handles)
        for handle in handles:
            if not handle.cancelled():
                self.steps += 1
                handle._run()

    def _admitted(self, handles: list[asyncio.Handle]) -> list[asyncio.Handle]:
        """Those that may run now: all of them. A loop that models sleeping processes keeps the others for later."""
        return handles

    def _drop_cancelled(self, timers: list[asyncio.TimerHandle]) -> None:
        while timers and timers[0].cancelled():
            heapq.heappop(timers)._scheduled = False  # type: ignore[attr-defined]
        self._timer_cancelled_count = 0

    def _who_waits(self) -> str:
        waiting = sorted(task.get_name() for task in asyncio.all_tasks(self) if not task.done())
        return f"at {self._now:g} s everything waits and nothing is left to wake it: {', '.join(waiting)}"

    def _process_events(self, event_list: object) -> None:
        raise NotImplementedError

    def run_in_executor(self, *_: Any) -> Any:  # type: ignore[override]
        raise RuntimeError(_NO_THREADS)

    def call_soon_threadsafe(self, *_: Any, context: Any = None) -> Any:  # type: ignore[override] # noqa: ARG002
        raise RuntimeError(_NO_THREADS)


class VirtualClock:
    """The running loop's time as a Clock; the calendar starts at a fixed instant."""

    def __init__(self, *, epoch: float = 1_767_225_600.0) -> None:
        self._epoch = epoch

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> float:
        return self._epoch + self.now()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def run_virtual(main: Callable[[], Awaitable[T]], *, seed: int = 0, loop: VirtualLoop | None = None) -> T:
    """Run `main()` on virtual time; its result. Leftover: it returned while tasks of its own were still running.

    `loop` in the place of a new one with that seed: it is used up.
    """
    loop = loop or VirtualLoop(seed)
    asyncio.set_event_loop(loop)
    try:
        result = loop.run_until_complete(_awaited(main))
        left = [task for task in asyncio.all_tasks(loop) if not task.done()]
        if left:
            raise Leftover(f"still running: {', '.join(sorted(task.get_name() for task in left))}")
        return result
    finally:
        _cancel_all(loop)
        asyncio.set_event_loop(None)
        loop.close()


async def _awaited(main: Callable[[], Awaitable[T]]) -> T:
    return await main()


def _cancel_all(loop: VirtualLoop) -> None:
    left = [task for task in asyncio.all_tasks(loop) if not task.done()]
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
