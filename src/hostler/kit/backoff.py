"""Pauses that grow after each failure, with jitter, so that clients that failed together do not retry together."""

from __future__ import annotations

import random


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
