"""Deadlines that outlive the process that set them.

Within one boot of the host every process reads the same monotonic clock, so a deadline is an instant on it: a restarted
process finds a lease with exactly the time it has left, and changes of the wall clock do not matter. The wall clock is
used only across a reboot, and never extends a lease beyond its own ttl.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.kit.clock import boot_id

if TYPE_CHECKING:
    from hostler.kit.clock import Clock


class Deadline(msgspec.Struct, frozen=True):
    """An instant: on the host's monotonic clock within one boot, and on the wall clock."""

    boot: str
    at: float
    wall: float


class HostTime:
    """Creates deadlines and converts them to the current boot."""

    def __init__(self, clock: Clock, boot: str | None = None) -> None:
        self._clock = clock
        self.boot = boot or boot_id()

    def now(self) -> float:
        """Return this boot's monotonic time."""
        return self._clock.now()

    def wall(self) -> float:
        """Return the wall clock's time."""
        return self._clock.wall()

    def after(self, seconds: float) -> Deadline:
        """Return the instant `seconds` from now."""
        return Deadline(self.boot, self._clock.now() + seconds, self._clock.wall() + seconds)

    def local(self, deadline: Deadline, ttl: float) -> Deadline:
        """Return the same deadline on this boot's clock; never further away than `ttl`."""
        if deadline.boot == self.boot:
            return deadline
        return self.after(min(ttl, max(0.0, deadline.wall - self._clock.wall())))
