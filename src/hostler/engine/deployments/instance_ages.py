"""Counts since when the ready instances of a slice are active: an instance that has just started may fail soon.

Instants are whole seconds, so instances that start within the same second share one counter.
"""

from __future__ import annotations

import math


class Ages:
    """Instances by artifact, template and second of activation."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since: dict[tuple[str, int], dict[int, int]] = {}

    def add(self, side: tuple[str, int], since: int) -> None:
        """Count an instance that is active since this second."""
        counts = self._since.setdefault(side, {})
        counts[since] = counts.get(since, 0) + 1

    def drop(self, side: tuple[str, int], since: int) -> None:
        """Remove an instance from the count."""
        counts = self._since[side]
        left = counts[since] - 1
        if left:
            counts[since] = left
        else:
            del counts[since]
            if not counts:
                del self._since[side]

    def fresh(self, side: tuple[str, int], now: float, min_ready: float) -> int:
        """Return how many instances have been active for less than `min_ready` seconds.

        An instance whose node's clock puts it more than `min_ready` seconds into the future is not counted, because it
        would be waited for indefinitely.
        """
        counts = self._since.get(side)
        if not counts or min_ready <= 0:
            return 0
        return _count(counts, now - min_ready, now + min_ready)

    def came(self, artifact: str, after: float, until: float) -> int:
        """Return how many instances of an artifact became active after `after` and not later than `until`."""
        return sum(_count(counts, after, until) for (name, _), counts in self._since.items() if name == artifact)


def _count(counts: dict[int, int], after: float, until: float) -> int:
    first, last = math.floor(after) + 1, math.floor(until)
    if last - first < len(counts):
        return sum(counts.get(since, 0) for since in range(first, last + 1))
    return sum(count for since, count in counts.items() if first <= since <= last)
