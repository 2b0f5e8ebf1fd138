"""Everything looked at in turn, some of it at a time.

What changes is looked at when it changes. That all is looked at again now and then, without any news, is for what
nobody foresaw; it must not cost more than the work itself. So a pass takes a share of everything, and all have had
their turn after so many passes; where there are few, each pass takes all of them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROUND = 3600.0
"""Seconds in which everything has its turn."""
LEAST = 50
"""Names that a pass takes, if there are so many."""


class Rounds:
    """Names by turns. What comes after a round began has its turn in the next."""

    def __init__(self, names: Callable[[], Iterable[str]], *, every: float) -> None:
        """`every`: seconds from pass to pass."""
        self._names = names
        self._passes = max(1, round(ROUND / every))
        self._left: list[str] = []
        self._share = 0

    def all(self) -> list[str]:
        """Everything; the next round begins after it."""
        self._left = []
        return list(dict.fromkeys(self._names()))

    def next(self) -> list[str]:
        """Those whose turn it is."""
        if not self._left:
            self._left = self.all()
            self._share = max(LEAST, math.ceil(len(self._left) / self._passes))
            self._left.reverse()
        turn = self._left[-self._share :]
        del self._left[-self._share :]
        turn.reverse()
        return turn
