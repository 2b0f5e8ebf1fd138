"""Collects the call metrics of all routers in the leader's memory. Nothing is stored.

Each router is polled every second, an idle one less often. It returns the seconds that it has not returned yet, and on
the first poll all that it remembers, so a new leader knows the last minutes at once. A router that is gone or does not
answer delays nothing: its earlier measurements still count, its calls in flight do not.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import TYPE_CHECKING

from hostler.engine.deployments.call_metrics import NOTHING, Measured
from hostler.engine.invocation.call_metrics import KEPT, Count, percentile
from hostler.kit.rate_limit import Backoff
from hostler.model.deployment import base_of
from hostler.ports.calls import Ask, CallFailed

if TYPE_CHECKING:
    import random

    from hostler.engine.service import Standing
    from hostler.engine.view import View
    from hostler.kit.clock import Clock
    from hostler.model.rollout import RouterRecord
    from hostler.ports.calls import Questions, Told

MOST_CPUS = 100_000.0
"""Maximum CPU usage that one router may report. A larger value or NaN is ignored."""
EVERY, IDLE_EVERY = 1.0, 5.0
"""Seconds between two polls of a router; of an idle router."""
RECENT = 60
"""Seconds over which latency is reported."""
SMOOTHED = 5
"""Seconds over which calls in flight are averaged."""


class _Artifact:
    """Measurements of one artifact."""

    __slots__ = ("calls", "errors", "seconds", "since")

    def __init__(self) -> None:
        self.seconds: dict[int, Count] = {}
        self.since = -math.inf
        self.calls = self.errors = 0

    def count_from(self, since: float) -> None:
        """Recompute the totals from this instant on, as far as seconds are remembered."""
        self.since = since
        counted = [one for at, one in self.seconds.items() if at >= since]
        self.calls, self.errors = sum(one.calls for one in counted), sum(one.errors for one in counted)


class Collector:
    """Leader service that polls all routers."""

    def __init__(self, view: View, questions: Questions, *, clock: Clock, rng: random.Random) -> None:
        self._view, self._questions, self._clock, self._rng = view, questions, clock, rng
        self._artifacts: dict[str, _Artifact] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._under_way: dict[str, dict[str, int]] = {}
        self._cpu: dict[str, dict[str, float]] = {}
        self._samples: deque[dict[str, int]] = deque(maxlen=SMOOTHED)
        self._began_at = clock.wall()
        self._answers = self._failures = 0

    @property
    def name(self) -> str:
        """Name of the service for display."""
        return "measures"

    @property
    def counters(self) -> dict[str, float]:
        """Counters for `/metrics`."""
        return {
            "routers": float(len(self._asking)),
            "answers": float(self._answers),
            "failures": float(self._failures),
        }

    async def start(self, standing: Standing) -> None:
        """Do nothing: the collector needs no state before its first poll."""

    async def run(self) -> None:
        """Poll every registered router until cancelled."""
        try:
            while True:
                self._meet()
                self._sample()
                await self._clock.sleep(EVERY)
        finally:
            tasks = list(self._asking.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def stop(self) -> None:
        """Do nothing: `run` has cleaned up."""

    def measured(self, artifact: str) -> Measured:
        """Return the metrics of an artifact over all routers, since the deployment of its slice last changed."""
        known = self._artifacts.get(artifact)
        under_way = sum(sample.get(artifact, 0) for sample in self._samples) / (len(self._samples) or 1)
        since = self._since(artifact)
        cpu = sum(told.get(artifact, 0.0) for told in self._cpu.values())
        if known is None and not under_way:  # the routers that answered would have reported calls
            return Measured(since=max(since, self._began_at), cpu=cpu) if self._answers else NOTHING
        if known is None:
            return Measured(in_flight=under_way, since=since, cpu=cpu)
        if known.since != since:
            known.count_from(since)
        times: dict[int, int] = {}
        calls = errors = 0
        start = max(since, self._clock.wall() - RECENT)
        for at, count in known.seconds.items():
            if at >= start:
                calls, errors = calls + count.calls, errors + count.errors
                for span, number in count.times.items():
                    times[span] = times.get(span, 0) + number
        return Measured(
            calls=known.calls,
            errors=known.errors,
            p95_ms=percentile(times, 0.95) * 1000,
            in_flight=under_way,
            since=since,
            recent_calls=calls,
            recent_errors=errors,
            cpu=cpu,
        )

    def seconds(self, base: str, after: float = 0.0) -> dict[str, list[tuple[int, Count]]]:
        """Return the counts of each second from `after` on, by artifact of the slice."""
        found: dict[str, list[tuple[int, Count]]] = {}
        for artifact, known in sorted(self._artifacts.items()):
            if base_of(artifact) == base:
                found[artifact] = sorted((at, count) for at, count in known.seconds.items() if at >= after)
        return found

    @property
    def asked(self) -> int:
        """Number of polls, successful or not."""
        return self._answers + self._failures

    # Internal

    def _since(self, artifact: str) -> float:
        entry = self._view.deployments.get(base=base_of(artifact))
        changed_at = 0.0 if entry is None else entry.value.changed_at
        return max(changed_at, self._began_at - KEPT)

    def _meet(self) -> None:
        """Run one polling task for each router that has an address."""
        present = {
            entry.value.router: entry.value for entry in self._view.routers.entries.values() if entry.value.address
        }
        for router in [router for router in self._asking if router not in present]:
            self._asking.pop(router).cancel()
            self._forget(router)
        for router, record in present.items():
            if router not in self._asking:
                self._asking[router] = asyncio.create_task(self._ask(record), name=f"measures of {router}")

    async def _ask(self, record: RouterRecord) -> None:
        after, backoff = 0, Backoff(EVERY, 4 * IDLE_EVERY, rng=self._rng)
        while True:
            try:
                told = await self._questions.ask(record.address, Ask(after))
            except CallFailed:
                self._failures += 1
                self._forget(record.router)
                await self._clock.sleep(backoff.next())
                continue
            backoff.reset()
            self._answers += 1
            if told.router != record.router:  # another process has its address now
                self._forget(record.router)
                await self._clock.sleep(IDLE_EVERY)
                continue
            self._take(told)
            after = max((second.at for second in told.seconds), default=after)
            after = min(after, told.now)  # the router's wall clock may have gone back
            quiet = not told.seconds and not told.in_flight
            await self._clock.sleep(IDLE_EVERY if quiet else EVERY)

    def _forget(self, router: str) -> None:
        """Drop the calls in flight and CPU rates of a router that is gone or does not answer."""
        self._under_way.pop(router, None)
        self._cpu.pop(router, None)

    def _take(self, told: Told) -> None:
        """Add the seconds of a router, converted to our wall clock."""
        shift = int(self._clock.wall()) - told.now
        self._under_way[told.router] = told.in_flight
        self._cpu[told.router] = {name: used for name, used in told.cpu.items() if 0 <= used <= MOST_CPUS}
        for second in told.seconds:
            at = second.at + shift
            for tally in second.tallies:
                known = self._artifacts.setdefault(tally.artifact, _Artifact())
                count = known.seconds.setdefault(at, Count())
                count.calls += tally.calls
                count.errors += tally.errors
                for span, number in tally.times.items():
                    count.times[span] = count.times.get(span, 0) + number
                if at >= known.since:
                    known.calls += tally.calls
                    known.errors += tally.errors

    def _sample(self) -> None:
        total: dict[str, int] = {}
        for in_flight in self._under_way.values():
            for artifact, number in in_flight.items():
                total[artifact] = total.get(artifact, 0) + number
        self._samples.append(total)
        oldest = self._clock.wall() - KEPT
        for artifact, known in list(self._artifacts.items()):
            if known.seconds and next(iter(known.seconds)) < oldest:
                known.seconds = {at: count for at, count in known.seconds.items() if at >= oldest}
            if not known.seconds and self._view.deployments.get(base=base_of(artifact)) is None:
                del self._artifacts[artifact]
