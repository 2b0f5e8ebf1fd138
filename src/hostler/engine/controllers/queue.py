"""Work queue: names waiting to be reconciled, each once, with bounded concurrency, and never one twice at a time."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from typing import TYPE_CHECKING

from hostler.errors import Closed, Conflict, LeadershipLost, Unavailable, Uncertain
from hostler.kit.backoff import Backoff

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

    from hostler.kit.clock import Clock

WIDTH = 64
SHARE = 8
"""One of this many names is taken from the patient lane, if it has any, however full the other lane is."""
FIRST_RETRY = 0.05
LAST_RETRY = 30.0


class Queue:
    """Calls `work(name)` for each added name; retries with a growing delay if it fails.

    A name that is added while it is being worked on is worked on once more afterwards. Exceptions of `work` are
    reported and retried, except LeadershipLost and Closed, which end `run`: one bad record must not stop the others.
    """

    def __init__(
        self,
        work: Callable[[str], Awaitable[None]],
        *,
        clock: Clock,
        rng: random.Random,
        tell: Callable[[str], None],
        counters: dict[str, int],
        width: int = WIDTH,
    ) -> None:
        self._work, self._clock, self._rng, self._tell, self._width = work, clock, rng, tell, width
        self._counters = counters
        self._ready: deque[str] = deque()
        self._patient: deque[str] = deque()
        self._waiting: dict[str, bool] = {}  # names in the two lanes; True: in the patient one
        self._running: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._later: list[tuple[float, int, str]] = []
        self._due: dict[str, float] = {}
        self._backoffs: dict[str, Backoff] = {}
        self._numbers = itertools.count()
        self._taken = 0
        self._wake = asyncio.Event()
        self._fatal: Exception | None = None

    def __len__(self) -> int:
        """Return the number of waiting names."""
        return len(self._waiting)

    def add(self, name: str, *, after: float = 0.0, patient: bool = False) -> None:
        """Queue a name now, or no later than `after` seconds from now; `patient`: other names go first."""
        if after > 0:
            due = self._clock.now() + after
            if self._due.get(name, due + 1) > due:
                self._due[name] = due
                heapq.heappush(self._later, (due, next(self._numbers), name))
                self._wake.set()
        elif name in self._running:
            self._again.add(name)
        elif name not in self._waiting:
            self._waiting[name] = patient
            (self._patient if patient else self._ready).append(name)
            self._wake.set()
        elif self._waiting[name] and not patient:
            self._waiting[name] = False  # its entry in the patient lane is skipped
            self._ready.append(name)
            self._wake.set()

    async def run(self) -> None:
        """Run until cancelled. Raises LeadershipLost or Closed if `work` did."""
        try:
            while self._fatal is None:
                self._wake.clear()
                self._collect()
                while len(self._running) < self._width and (name := self._next()) is not None:
                    self._running[name] = asyncio.create_task(self._one(name), name=f"reconciling {name}")
                if self._fatal is None:
                    await self._pause()
            raise self._fatal
        finally:
            tasks = list(self._running.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # Internal

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

    def _collect(self) -> None:
        now = self._clock.now()
        while self._later and self._later[0][0] <= now:
            due, _, name = heapq.heappop(self._later)
            if self._due.get(name) == due:
                del self._due[name]
                self.add(name)

    async def _pause(self) -> None:
        left = self._later[0][0] - self._clock.now() if self._later else None
        try:
            async with asyncio.timeout(left):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _one(self, name: str) -> None:
        retry = False
        try:
            await self._work(name)
        except (LeadershipLost, Closed) as error:
            self._fatal = error
        except (Conflict, Unavailable, Uncertain):
            self._counters["retries"] = self._counters.get("retries", 0) + 1
            retry = True
        except Exception as error:  # noqa: BLE001 - reported and retried: other names must not be affected
            self._counters["failures"] = self._counters.get("failures", 0) + 1
            self._tell(f"{name}: {type(error).__name__}: {error}; it will be tried again")
            retry = True
        finally:
            del self._running[name]
            self._wake.set()
        if retry:
            self._again.discard(name)
            backoff = self._backoffs.setdefault(name, Backoff(FIRST_RETRY, LAST_RETRY, rng=self._rng))
            self.add(name, after=backoff.next())
            return
        self._backoffs.pop(name, None)
        if name in self._again:
            self._again.discard(name)
            self.add(name)
