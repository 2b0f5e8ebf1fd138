"""Work queue: names waiting to be reconciled, now or later, with bounded concurrency, and never one twice at a time.

Changes are reconciled when they happen. The resync, a periodic pass without a change, covers unforeseen cases and must
not cost more than the work itself. So a pass takes a share of all names, and every name has its turn after a fixed
number of passes; if there are few, each pass takes all of them.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import deque
from typing import TYPE_CHECKING, Any

from hostler.errors import Closed, Conflict, LeadershipLost, Unavailable, Uncertain
from hostler.kit.rate_limit import Backoff
from hostler.kit.tasks import Nap

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Coroutine, Iterable

    from hostler.kit.clock import Clock


WIDTH = 64
SHARE = 8
"""One of this many names is taken from the patient lane, if it has any, however full the other lane is."""
FIRST_RETRY = 0.05
LAST_RETRY = 30.0
WORKER_FAILED = 60.0
"""Seconds after which the worker of an agent is started again that ended with an unexpected error."""


class WorkQueue:
    """Calls `work(name)` for each added name, in up to `width` tasks at a time, while `run` runs.

    No wake-up is lost: after each `add(name)` a call begins that reads the state anew. A name that is added while it is
    being worked on is worked on once more afterwards. If `work` fails, the name is retried with a growing delay, also
    if it was added during the failed call. Exceptions are reported and retried, except LeadershipLost and Closed, which
    end `run`: one bad record must not stop the others.
    """

    def __init__(
        self,
        work: Callable[[str], Coroutine[Any, Any, None]],
        *,
        clock: Clock,
        rng: random.Random,
        tell: Callable[[str], None],
        counters: dict[str, int],
        width: int = WIDTH,
        what: str = "reconciling",
    ) -> None:
        """`what`: begins the names of the tasks."""
        self._work, self._clock, self._rng, self._tell, self._width = work, clock, rng, tell, width
        self._counters, self._what = counters, what
        self._ready: deque[str] = deque()
        self._patient: deque[str] = deque()
        self._waiting: dict[str, bool] = {}  # names in the two lanes; True: in the patient one
        self._running: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()  # running names to work on once more
        self._due: dict[str, float] = {}
        self._timers: list[tuple[float, str]] = []  # a heap; entries that differ from `_due` are out of date
        self._backoffs: dict[str, Backoff] = {}
        self._taken = 0
        self._open = False
        self._fatal: BaseException | None = None
        self._wake = asyncio.Event()
        self._nap = Nap(clock)
        self.turns = 0
        """Number of calls that began and ended."""

    def __len__(self) -> int:
        """Return the number of names that wait for a task."""
        return len(self._waiting)

    @property
    def working(self) -> int:
        """Number of names being worked on."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Number of names that wait for a task, for the end of the current call, or for their time."""
        return len({*self._waiting, *self._again, *self._due})

    def has(self, name: str) -> bool:
        """Return whether the name is queued, scheduled or being worked on."""
        return name in self._waiting or name in self._running or name in self._due

    def add(self, name: str, *, after: float = 0.0, patient: bool = False) -> None:
        """Queue a name now, or no later than `after` seconds from now; `patient`: other names go first."""
        if after > 0:
            self.add_at(name, self._clock.now() + after)
        elif name in self._running:
            self._again.add(name)
        elif name not in self._waiting:
            self._waiting[name] = patient
            (self._patient if patient else self._ready).append(name)
            self._begin()
        elif self._waiting[name] and not patient:
            self._waiting[name] = False  # its entry in the patient lane is skipped
            self._ready.append(name)

    def add_at(self, name: str, at: float) -> None:
        """Queue a name no later than this instant on the clock of the queue."""
        known = self._due.get(name)
        if known is not None and known <= at:
            return
        self._due[name] = at
        heapq.heappush(self._timers, (at, name))
        if self._timers[0][1] == name:
            self._look_up()

    def take(self, name: str) -> None:
        """Record that the call for this name now reads the current state: earlier calls of `add` are done with."""
        self._again.discard(name)
        self._due.pop(name, None)

    async def run(self) -> None:
        """Run until cancelled; then all calls are cancelled. Raises LeadershipLost or Closed if `work` did."""
        self._open = True
        self._begin()
        try:
            while self._fatal is None:
                self._wake.clear()
                now = self._clock.now()
                while self._timers and self._timers[0][0] <= now:
                    at, name = heapq.heappop(self._timers)
                    if self._due.get(name) == at:
                        del self._due[name]
                        self.add(name)
                if self._timers:
                    await self._nap.sleep(self._timers[0][0] - now)
                else:
                    await self._wake.wait()
            raise self._fatal
        finally:
            await self.aclose()

    async def stop(self, names: list[str]) -> None:
        """Cancel the calls for these names, wait until they have ended, and queue the names again."""
        tasks = [self._running[name] for name in names if name in self._running]
        for name in names:
            self.add(name)
        await _cancel(tasks)

    async def aclose(self) -> None:
        """Begin no more calls, cancel the current ones, and wait until they have ended."""
        self._open = False
        await _cancel(list(self._running.values()))

    # Internal

    def _look_up(self) -> None:
        """Let `run` look at the timers, and at how a call ended."""
        self._wake.set()
        self._nap.wake()

    def _begin(self) -> None:
        while self._open and len(self._running) < self._width and (name := self._next()) is not None:
            task = asyncio.create_task(self._one(name), name=f"{self._what} {name}")
            self._running[name] = task
            self.turns += 1
            task.add_done_callback(lambda task, name=name: self._on_end(name, task))  # type: ignore[misc]

    def _next(self) -> str | None:
        self._taken += 1
        lanes = [self._ready, self._patient]
        if self._taken % SHARE == 0:
            lanes.reverse()
        for lane in lanes:
            while lane:
                name = lane.popleft()
                if self._waiting.get(name) is (lane is self._patient):
                    del self._waiting[name]
                    return name
        return None

    async def _one(self, name: str) -> None:
        self._again.discard(name)  # it was added between the creation and the first step of this task
        await self._work(name)

    def _on_end(self, name: str, task: asyncio.Task[None]) -> None:
        del self._running[name]
        self.turns += 1
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_failure(name, error)
        else:
            self._backoffs.pop(name, None)
            if name in self._again:
                self._again.discard(name)
                self.add(name)
        self._begin()

    def _on_failure(self, name: str, error: BaseException) -> None:
        if isinstance(error, LeadershipLost | Closed) or not isinstance(error, Exception):
            self._fatal, self._open = error, False
            self._look_up()
            return
        if isinstance(error, Conflict | Unavailable | Uncertain):
            self._counters["retries"] = self._counters.get("retries", 0) + 1
        else:
            self._counters["failures"] = self._counters.get("failures", 0) + 1
            self._tell(f"{name}: {type(error).__name__}: {error}; it will be tried again")
        self._again.discard(name)
        backoff = self._backoffs.setdefault(name, Backoff(FIRST_RETRY, LAST_RETRY, rng=self._rng))
        self.add(name, after=backoff.next())


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


ROUND = 3600.0
"""Seconds in which every name has its turn."""
LEAST = 50
"""Smallest number of names per pass, if there are that many."""


class Resync:
    """Names in turn. A name that is added during a round has its turn in the next one."""

    def __init__(self, names: Callable[[], Iterable[str]], *, every: float) -> None:
        """`every`: seconds between two passes."""
        self._names = names
        self._passes = max(1, round(ROUND / every))
        self._left: list[str] = []
        self._share = 0

    def all(self) -> list[str]:
        """Return all names; the next round begins after it."""
        self._left = []
        return list(dict.fromkeys(self._names()))

    def next(self) -> list[str]:
        """Return the names whose turn it is."""
        if not self._left:
            self._left = self.all()
            self._share = max(LEAST, math.ceil(len(self._left) / self._passes))
            self._left.reverse()
        turn = self._left[-self._share :]
        del self._left[-self._share :]
        turn.reverse()
        return turn
