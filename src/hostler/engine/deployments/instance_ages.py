"""Since when the ready instances of a slice are active: one that has just come up may be gone the next moment.

Instants are whole seconds, so however many instances come up together are one number.
"""

from __future__ import annotations

import math


class Ages:
    """By artifact and template."""

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since: dict[tuple[str, int], dict[int, int]] = {}

    def add(self, side: tuple[str, int], since: int) -> None:
        """One more is active since then."""
        counts = self._since.setdefault(side, {})
        counts[since] = counts.get(since, 0) + 1

    def drop(self, side: tuple[str, int], since: int) -> None:
        """One fewer is."""
        counts = self._since[side]
        left = counts[since] - 1
        if left:
            counts[since] = left
        else:
            del counts[since]
            if not counts:
                del self._since[side]

    def fresh(self, side: tuple[str, int], now: float, min_ready: float) -> int:
        """How many have not been active for so long.

        What a node's clock puts further into the future than that would wait for ever, and is not waited for.
        """
        counts = self._since.get(side)
        if not counts or min_ready <= 0:
            return 0
        return _count(counts, now - min_ready, now + min_ready)

    def came(self, artifact: str, after: float, until: float) -> int:
        """How many instances of an artifact are active since an instant after the one, and not after the other."""
        return sum(_count(counts, after, until) for (name, _), counts in self._since.items() if name == artifact)


def _count(counts: dict[int, int], after: float, until: float) -> int:
    first, last = math.floor(after) + 1, math.floor(until)
    if last - first < len(counts):
        return sum(counts.get(since, 0) for since in range(first, last + 1))
    return sum(count for since, count in counts.items() if first <= since <= last)
