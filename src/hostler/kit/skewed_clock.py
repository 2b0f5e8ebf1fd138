"""A clock that runs at a different rate than the underlying clock, in its readings and in its sleeps."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from hostler.kit.clock import Clock

ROUNDED = 1e-9
"""Seconds added to a sleep when one clock is computed from the other.

A caller that sleeps until a deadline must find, when it wakes, that the deadline has passed. Otherwise it sleeps again,
for less than the resolution of any clock, and never continues.
"""


class RatedClock:
    """A clock with an adjustable rate. A change does not affect sleeps in progress, nor the wall clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rate = 1.0
        # Where the rate changed: an instant of this clock, the same instant of the underlying one, and the rate since.
        self._bends: list[tuple[float, float, float]] = []
        self.now: Callable[[], float] = clock.now
        """As `Clock.now`.

        Called more often than anything else, so it has no indirection while the rate never changed.
        """

    @property
    def rate(self) -> float:
        """Seconds that this clock counts per second of the underlying clock."""
        return self._rate

    @rate.setter
    def rate(self, rate: float) -> None:
        if not rate > 0:
            raise ValueError(f"rate {rate}: must be above 0")
        if rate != self._rate:
            self._bends.append((self.now(), self._clock.now(), rate))
            self._rate, self.now = rate, self._reckoned

    def _reckoned(self) -> float:
        own, since, rate = self._bends[-1]
        return own + (self._clock.now() - since) * rate

    def wall(self) -> float:
        return self._clock.wall()

    def sleep(self, seconds: float) -> Coroutine[Any, Any, None]:
        if not self._bends or seconds <= 0:
            return self._clock.sleep(seconds)
        return self._clock.sleep(seconds / self._rate + ROUNDED)

    def underneath(self, at: float) -> float:
        """Convert an instant of this clock to the underlying clock."""
        number = bisect_right(self._bends, at, key=lambda bend: bend[0])
        if number == 0:
            return at
        own, since, rate = self._bends[number - 1]
        return since + (at - own) / rate
