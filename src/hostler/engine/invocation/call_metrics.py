"""What this process measured of the calls that it routed, second by second, for as long as somebody may ask.

How long calls took is kept by spans that each are a quarter longer than the one before: a 95th percentile out of them
is at most that much too large.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import TYPE_CHECKING

from hostler.engine.invocation.cpu_rates import CpuRates
from hostler.ports.calls import Second, Tally, Told

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostler.kit.clock import Clock

KEPT = 300
"""Seconds."""
BOUNDS = tuple(0.0001 * 1.25**number for number in range(72))
"""Where spans end, in seconds: from a tenth of a millisecond to a quarter of an hour."""


def span_of(seconds: float) -> int:
    """The number of the span that this falls into."""
    return bisect_left(BOUNDS, seconds)


def percentile(times: Mapping[int, int], share: float) -> float:
    """Seconds within which this share of the calls was answered, about; 0.0: there were none."""
    wanted = math.ceil(sum(times.values()) * share)
    if not wanted:
        return 0.0
    for span in sorted(times):
        wanted -= times[span]
        if wanted <= 0:
            return BOUNDS[min(span, len(BOUNDS) - 1)]
    return BOUNDS[-1]


class Count:
    """Calls of an artifact within a second."""

    __slots__ = ("calls", "errors", "times")

    def __init__(self) -> None:
        self.calls = self.errors = 0
        self.times: dict[int, int] = {}


class Measures:
    """Counts that one router keeps."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seconds: dict[int, dict[str, Count]] = {}
        self._at = -1
        self._now: dict[str, Count] = {}
        self.in_flight: dict[str, int] = {}
        self.calls = self.errors = 0
        self.cpu = CpuRates(clock)

    def begin(self, artifact: str) -> None:
        """A call was sent."""
        self.in_flight[artifact] = self.in_flight.get(artifact, 0) + 1

    def end(self, artifact: str) -> None:
        """It is over, however; `count` it where it says something of the artifact."""
        left = self.in_flight.get(artifact, 0) - 1
        if left > 0:
            self.in_flight[artifact] = left
        else:
            self.in_flight.pop(artifact, None)

    def count(self, artifact: str, seconds: float, *, error: bool) -> None:
        """A call was answered, or failed, after so many seconds."""
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

    def told(self, router: str, after: int) -> Told:
        """The seconds after that one, all that are complete."""
        now = int(self._clock.wall())
        seconds = tuple(
            Second(at, tuple(Tally(name, one.calls, one.errors, one.times) for name, one in sorted(counts.items())))
            for at, counts in sorted(self._seconds.items())
            if after < at < now
        )
        return Told(router, now, seconds, dict(sorted(self.in_flight.items())), self.cpu.rates())

    # Inside

    def _turn(self, at: int) -> None:
        """Another second; the calendar may have gone back."""
        self._at = at
        self._now = self._seconds.setdefault(at, {})
        for old in [second for second in self._seconds if not at - KEPT <= second <= at]:
            del self._seconds[old]
