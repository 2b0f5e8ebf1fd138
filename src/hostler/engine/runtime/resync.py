"""Resync: everything is reconciled in turn, a part at a time.

Changes are reconciled when they happen. The periodic pass over everything, without a change, covers unforeseen cases
and must not cost more than the work itself. So a pass takes a share of all names, and every name has its turn after a
fixed number of passes; if there are few, each pass takes all of them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

ROUND = 3600.0
"""Seconds in which every name has its turn."""
LEAST = 50
"""Smallest number of names per pass, if there are that many."""


class Resync:
    """Names in turn. A name that is added during a round has its turn in the next one."""

    def __init__(self, names: Callable[[], Iterable[str]], *, every: float) -> None:
        """`every`: seconds between two passes."""
        self._names = names
        self._passes = max(1, round(ROUND / every))
        self._left: list[str] = []
        self._share = 0

    def all(self) -> list[str]:
        """Return all names; the next round begins after it."""
        self._left = []
        return list(dict.fromkeys(self._names()))

    def next(self) -> list[str]:
        """Return the names whose turn it is."""
        if not self._left:
            self._left = self.all()
            self._share = max(LEAST, math.ceil(len(self._left) / self._passes))
            self._left.reverse()
        turn = self._left[-self._share :]
        del self._left[-self._share :]
        turn.reverse()
        return turn
