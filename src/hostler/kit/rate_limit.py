"""How often something may happen: token buckets for callers, growing pauses for retries."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


CAPACITY = 10_000
ROUNDED = 1e-6
"""Seconds by which a token may be early: sums of floats are not exact."""


class TokenBuckets:
    """One bucket per name. It holds at most `burst` tokens and gains `rate` tokens a second.

    A rate of 0 means no limit. A full bucket is not stored. Beyond `capacity` buckets the oldest are discarded, which
    fills them.
    """

    def __init__(self, rate: float, burst: float, *, now: Callable[[], float], capacity: int = CAPACITY) -> None:
        self.rate, self.burst = rate, burst
        self._now, self._capacity = now, capacity
        self._each = 1.0 / rate if rate > 0 else 0.0
        self._depth = burst * self._each
        self._full_at: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._full_at)

    def take(self, name: str) -> float:
        """Take a token and return 0.0. If there is none, take nothing and return the seconds until there is one."""
        if not self._each:
            return 0.0
        now = self._now()
        full_at = max(self._full_at.get(name, now), now)
        missing = full_at + self._each - now - self._depth
        if missing > ROUNDED:
            return missing
        self._full_at[name] = full_at + self._each
        if len(self._full_at) > self._capacity:
            self._forget(now)
        return 0.0

    def _forget(self, now: float) -> None:
        kept = {name: full_at for name, full_at in self._full_at.items() if full_at > now}
        for name in list(kept)[: max(0, len(kept) - self._capacity * 9 // 10)]:
            del kept[name]
        self._full_at = kept


class Backoff:
    """The next pause: grows by `factor` from `first` to `most`, each drawn from the upper half of its span."""

    def __init__(
        self, first: float = 0.05, most: float = 2.0, factor: float = 2.0, *, rng: random.Random | None = None
    ) -> None:
        self._first, self._most, self._factor = first, most, factor
        self._rng = rng or random.Random()  # noqa: S311 - jitter, not security
        self._span = first

    def next(self) -> float:
        """Return the pause to take now."""
        span = self._span
        self._span = min(self._most, span * self._factor)
        return self._rng.uniform(span / 2, span)

    def reset(self) -> None:
        """Start again from the shortest pause, after a success."""
        self._span = self._first
