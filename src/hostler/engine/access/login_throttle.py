"""Login throttle: after many failures, each further try has to wait longer.

Kept in memory, per replica, for a bounded number of names; failures are forgotten over time.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from hostler.errors import TooManyTries

if TYPE_CHECKING:
    from hostler.kit.clock import Clock

MOST = 60.0
"""The longest wait, and the time after which one failure is forgotten."""


class Slowing:
    """Counts failures by name. The first `free` cost nothing; then each try waits twice as long as the one before.

    A try is counted when it begins, so that many concurrent tries do not bypass the limit. Names beyond `capacity`
    replace those with the oldest failures.
    """

    def __init__(self, what: str, *, clock: Clock, free: int, first: float = 1.0, capacity: int = 10_000) -> None:
        self._what, self._clock, self._free, self._first, self._capacity = what, clock, free, first, capacity
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()  # number of failures, and their time

    def __len__(self) -> int:
        return len(self._failures)

    def wait(self, name: str) -> float:
        """Return the seconds until the next try is allowed; 0.0: now."""
        now = self._clock.now()
        failed, at = self._failures.get(name, (0, now))
        over = _left(failed, now - at) - self._free
        if over < 0:
            return 0.0
        # The exponent is bounded: a float would overflow after many failures.
        return max(0.0, at + min(MOST, self._first * 2.0 ** min(over, 16)) - now)

    def begin(self, name: str) -> None:
        """Count a try. TooManyTries: it must wait, and is not counted."""
        self.check(name)
        self.failed(name)

    def check(self, name: str) -> None:
        """Raise TooManyTries if a try must wait."""
        after = self.wait(name)
        if after > 0:
            raise TooManyTries(f"{self._what}: too many tries have failed; try again in {after:.0f} s", after)

    def failed(self, name: str) -> None:
        now = self._clock.now()
        failed, at = self._failures.pop(name, (0, now))
        self._failures[name] = (_left(failed, now - at) + 1, now)
        if len(self._failures) > self._capacity:
            self._failures.popitem(last=False)

    def take_back(self, name: str) -> None:
        """Undo the last count: the try succeeded, or could not be made."""
        failed, at = self._failures.get(name, (0, 0.0))
        if failed > 1:
            self._failures[name] = (failed - 1, at)
        else:
            self.forget(name)

    def forget(self, name: str) -> None:
        """Reset the count."""
        self._failures.pop(name, None)


def _left(failed: int, since: float) -> int:
    return max(0, failed - int(since // MOST))
