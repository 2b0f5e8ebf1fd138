"""A clock that runs at another rate than the one underneath: what it measures, and how long it sleeps."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from hostler.kit.clock import Clock

ROUNDED = 1e-9
"""Seconds that a sleep takes longer, where one clock is reckoned from the other: who sleeps until a deadline must find,
when it wakes, that it has passed. Otherwise it sleeps again, for less than any clock can tell, and never gets on."""


class RatedClock:
    """The rate can change at any time; a sleep that is under way ends when it would have. The calendar stays right."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rate = 1.0
        # Where the rate changed: an instant of this clock, the same instant of the one underneath, and the rate since.
        self._bends: list[tuple[float, float, float]] = []
        self.now: Callable[[], float] = clock.now
        """As of a Clock; asked for more often than anything else, so without a detour while nothing is bent."""

    @property
    def rate(self) -> float:
        """Seconds that it counts in one second."""
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
        """An instant of this clock, on the one underneath."""
        number = bisect_right(self._bends, at, key=lambda bend: bend[0])
        if number == 0:
            return at
        own, since, rate = self._bends[number - 1]
        return since + (at - own) / rate
