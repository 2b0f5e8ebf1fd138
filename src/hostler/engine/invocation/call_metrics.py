"""Measurements of the calls that this process routed, per second, kept for `KEPT` seconds.

Latencies are counted in buckets, each a quarter wider than the one before. A 95th percentile computed from them is at
most 25 % too large. The processor time that slices use is reported with the calls, by artifact; it is never stored.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hostler.ports.calls import CallCounts, Second, Told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hostler.kit.clock import Clock


KEPT = 300
"""Seconds for which measurements are kept."""
BOUNDS = tuple(0.0001 * 1.25**number for number in range(72))
"""Upper bounds of the latency buckets in seconds: from 0.1 ms to about 15 minutes."""


def span_of(seconds: float) -> int:
    """Return the index of the latency bucket for a duration."""
    return bisect_left(BOUNDS, seconds)


def percentile(times: Mapping[int, int], share: float) -> float:
    """Return the approximate latency in seconds within which this share of calls completed; 0.0: no calls."""
    wanted = math.ceil(sum(times.values()) * share)
    if not wanted:
        return 0.0
    for span in sorted(times):
        wanted -= times[span]
        if wanted <= 0:
            return BOUNDS[min(span, len(BOUNDS) - 1)]
    return BOUNDS[-1]


class Count:
    """Calls to one artifact within one second."""

    __slots__ = ("calls", "errors", "times")

    def __init__(self) -> None:
        self.calls = self.errors = 0
        self.times: dict[int, int] = {}


class Measures:
    """Call counters of one router."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seconds: dict[int, dict[str, Count]] = {}
        self._at = -1
        self._now: dict[str, Count] = {}
        self.in_flight: dict[str, int] = {}
        self.calls = self.errors = 0
        self.cpu = CpuRates(clock)

    def begin(self, artifact: str) -> None:
        """Record that a call was sent."""
        self.in_flight[artifact] = self.in_flight.get(artifact, 0) + 1

    def end(self, artifact: str) -> None:
        """Record that a call is no longer in flight. Also `count` it if its result reflects on the artifact."""
        left = self.in_flight.get(artifact, 0) - 1
        if left > 0:
            self.in_flight[artifact] = left
        else:
            self.in_flight.pop(artifact, None)

    def count(self, artifact: str, seconds: float, *, error: bool) -> None:
        """Count a call that was answered or failed after this many seconds."""
        at = int(self._clock.wall())
        if at != self._at:
            self._turn(at)
        count = self._now.get(artifact)
        if count is None:
            count = self._now[artifact] = Count()
        count.calls += 1
        self.calls += 1
        if error:
            count.errors += 1
            self.errors += 1
        span = span_of(seconds)
        count.times[span] = count.times.get(span, 0) + 1

    def seconds_after(self, router: str, after: int) -> Told:
        """Return all complete seconds later than `after`."""
        now = int(self._clock.wall())
        seconds = tuple(
            Second(
                at, tuple(CallCounts(name, one.calls, one.errors, one.times) for name, one in sorted(counts.items()))
            )
            for at, counts in sorted(self._seconds.items())
            if after < at < now
        )
        return Told(router, now, seconds, dict(sorted(self.in_flight.items())), self.cpu.rates())

    # Internal

    def _turn(self, at: int) -> None:
        """Start a new second and drop old ones; the wall clock may have gone back."""
        self._at = at
        self._now = self._seconds.setdefault(at, {})
        for old in [second for second in self._seconds if not at - KEPT <= second <= at]:
            del self._seconds[old]


SPAN = 4.0
"""Minimum seconds over which a rate is averaged: several processes may query it, each at its own interval."""


class CpuRates:
    """Rates from CPU counters that only grow while an instance lives."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sources: list[Callable[[], Mapping[str, float]]] = []
        self._samples: list[tuple[float, dict[str, float]]] = []

    @contextmanager
    def counting(self, source: Callable[[], Mapping[str, float]]) -> Iterator[None]:
        """Include the counters of a driver (`CpuTimes.cpu_seconds`) while this context is open."""
        self._sources.append(source)
        try:
            yield
        finally:
            self._sources.remove(source)

    def rates(self) -> dict[str, float]:
        """Return the CPUs in use per artifact, over all its instances; an instance counts from its second sample."""
        if not self._sources:
            return {}
        now = self._clock.now()
        latest = {name: seconds for source in self._sources for name, seconds in source().items()}
        while len(self._samples) > 1 and now - self._samples[1][0] >= SPAN:
            del self._samples[0]
        found: dict[str, float] = {}
        if self._samples:
            at, earlier = self._samples[0]
            for name, seconds in latest.items():
                used = seconds - earlier.get(name, seconds)
                if now > at and used >= 0:  # a lower counter means that the process was restarted
                    artifact = name.rpartition("#")[0]
                    found[artifact] = found.get(artifact, 0.0) + used / (now - at)
        if not self._samples or now - self._samples[-1][0] >= SPAN / 4:
            self._samples.append((now, latest))
        return {artifact: round(rate, 3) for artifact, rate in sorted(found.items()) if rate > 0}
