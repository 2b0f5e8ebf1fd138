"""Deadlines that outlive the process that set them.

Within one boot of the machine every process reads the same monotonic clock, so the deadline is an instant on it: a
restarted process finds a lease with exactly the time it has left, and nothing that happens to the calendar matters.
Only across a reboot is the calendar asked, and it is believed no further than the lease's own ttl.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.kit.clock import boot_id

if TYPE_CHECKING:
    from hostler.kit.clock import Clock


class Deadline(msgspec.Struct, frozen=True):
    """An instant: on the machine's monotonic clock while it is up, and on the calendar."""

    boot: str
    at: float
    wall: float


class HostTime:
    """Makes deadlines and tells how far away they are."""

    def __init__(self, clock: Clock, boot: str | None = None) -> None:
        self._clock = clock
        self.boot = boot or boot_id()

    def now(self) -> float:
        """This boot's monotonic time."""
        return self._clock.now()

    def wall(self) -> float:
        """The calendar's time."""
        return self._clock.wall()

    def after(self, seconds: float) -> Deadline:
        """The instant `seconds` from now."""
        return Deadline(self.boot, self._clock.now() + seconds, self._clock.wall() + seconds)

    def local(self, deadline: Deadline, ttl: float) -> Deadline:
        """The same deadline on this boot's clock; never further away than `ttl`."""
        if deadline.boot == self.boot:
            return deadline
        return self.after(min(ttl, max(0.0, deadline.wall - self._clock.wall())))
