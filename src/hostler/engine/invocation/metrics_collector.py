"""Collects the call metrics of all routers in memory. Nothing is stored.

Each router is polled every second, an idle one less often. It returns the seconds that it has not returned yet, and on
the first poll all that it remembers, so a new leader knows the last minutes at once. A router that is gone or does not
answer delays nothing: its earlier measurements still count, its calls in flight do not.

The leader collects metrics for its own decisions. Any other replica asks the routers, too, but only while a client
reads the metrics.
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
from hostler.model.slice_api import BlueprintCalls, SliceCalls, VersionCalls
from hostler.ports.calls import Ask, CallFailed

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable

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

    def metrics_of(self, artifact: str) -> Measured:
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
    def polls(self) -> int:
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


UNSEEN = 20.0
"""Seconds after the last read for which routers are still polled."""
FIRST, LOOK = 1.0, 0.02
"""Seconds that the first read waits for routers at most; seconds between checks whether they have answered."""


class CallWatch:
    """Call metrics of this process. There is one per process."""

    def __init__(self, view: View, questions: Questions, *, clock: Clock, rng: random.Random) -> None:
        self._view, self._questions, self._clock, self._rng = view, questions, clock, rng
        self._collector: Collector | None = None
        self._watching: asyncio.Task[None] | None = None
        self._asked_at = 0.0

    async def calls(self, name: str, bases: Iterable[str], *, after: float = 0.0) -> BlueprintCalls:
        """Return the metrics of these slices since the instant `after`, as far as they are remembered."""
        self._asked_at = self._clock.now()
        collector = self._collector
        if collector is None:
            collector = self._collector = Collector(self._view, self._questions, clock=self._clock, rng=self._rng)
            self._watching = asyncio.create_task(self._watch(collector), name="calls: watched")
            await self._first_answers(collector)
        return BlueprintCalls(
            name=name,
            now=self._clock.wall(),
            kept=KEPT,
            slices=tuple(SliceCalls(base=base, versions=_versions(collector, base, after)) for base in bases),
        )

    async def aclose(self) -> None:
        """Stop polling routers."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait((self._watching,))

    # Internal

    async def _watch(self, collector: Collector) -> None:
        asking = asyncio.create_task(collector.run(), name="calls: asking")
        try:
            while self._clock.now() - self._asked_at < UNSEEN and not asking.done():
                await self._clock.sleep(1.0)
        finally:
            self._collector = None
            asking.cancel()
            await asyncio.wait((asking,))

    async def _first_answers(self, collector: Collector) -> None:
        routers, end = len(self._view.routers.entries), self._clock.now() + FIRST
        while collector.polls < routers and self._clock.now() < end:
            await self._clock.sleep(LOOK)


def _versions(collector: Collector, base: str, after: float) -> tuple[VersionCalls, ...]:
    found = []
    for artifact, seconds in collector.seconds(base, after).items():
        measured = collector.metrics_of(artifact)
        found.append(
            VersionCalls(
                artifact=artifact,
                calls=measured.calls,
                errors=measured.errors,
                p95_ms=round(measured.p95_ms, 2),
                in_flight=round(measured.in_flight, 2),
                since=measured.since,
                at=tuple(at for at, _ in seconds),
                called=tuple(count.calls for _, count in seconds),
                failed=tuple(count.errors for _, count in seconds),
                latency_ms=tuple(round(percentile(count.times, 0.95) * 1000, 2) for _, count in seconds),
            )
        )
    return tuple(found)
