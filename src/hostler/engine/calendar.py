"""Comparison of the wall clock of this process with those of the nodes, done before anything expires.

Every agent writes its wall-clock time every five minutes (`CLOCK`). The comparison is between two wall clocks: this
process advances a received reading with its own monotonic clock, so a reading does not go stale. The median of all
nodes counts, so a single wrong clock among many has no effect. Nodes in this process share its clock and are ignored.

Without readings from other nodes, a wall clock that jumps is not trusted for an hour. Nor is one that is behind the
time that the leader recorded last (`LAST_CLOCK`), or more than a day ahead of it: at startup a process cannot tell
whether the control plane was off for that long or its clock is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.keys.families import CLOCK

if TYPE_CHECKING:
    from collections.abc import Collection

    from hostler.keys.cache import Cache
    from hostler.kit.clock import Clock
    from hostler.model.node import ClockReading

READ_EVERY = 300.0
"""Seconds between two clock readings of an agent."""
MOST = 60.0
"""Largest accepted difference between two wall clocks, in seconds."""
GOOD_FOR = 1.0
"""Seconds for which a comparison is cached, because it is requested for each lab."""
BELIEVED_AFTER = 3600.0
"""Seconds after which a jump is trusted if no other node contradicts it."""
RECORD_EVERY = 3600.0
"""Seconds between two records of the leader's wall clock."""
RECORD_AFTER = 60.0
"""Seconds of leadership before the leader records its wall clock."""
OFF_FOR = 86400.0
"""Longest downtime of a control plane, in seconds, that does not cast doubt on its wall clock."""


class Apart(msgspec.Struct, frozen=True):
    """The difference between the wall clock of this process and the reference."""

    seconds: float
    """Seconds ahead of the reference; negative: behind it."""
    of: str
    """The node with the reference clock; empty: the reference is an earlier reading of this process's clock."""
    recorded: bool = False
    """The reference was recorded by an earlier process."""

    def __str__(self) -> str:
        """Return the difference as a phrase for use inside a message."""
        than = f"the clock of node {self.of}" if self.of else "its earlier reading: it was set"
        if self.recorded:
            off = "the control plane was off for that long, or the clock is wrong"
            why = off if self.seconds > 0 else "the clock is wrong, or was wrong then"
            than = f"the last recorded time: {why}"
        return f"{abs(self.seconds):.0f} s {'ahead of' if self.seconds > 0 else 'behind'} {than}"


class Calendar:
    """Compares wall clocks, based on the cache of all clock readings. One per process."""

    def __init__(self, clocks: Cache[ClockReading], *, clock: Clock) -> None:
        self._clocks, self._clock = clocks, clock
        self.own: Collection[str] = ()
        """The nodes in this process; the collection may grow."""
        # by node: its wall clock minus our monotonic clock, and its age
        self._heard: dict[str, tuple[float, float]] = {}
        self._start = clock.wall() - clock.now()
        self._jumped_at: float | None = None
        self._recorded: float | None = None
        """The time recorded before this process led, minus our monotonic clock; None: none, or no longer relevant."""
        self._found: tuple[float, float, Apart | None] = (0.0, float("inf"), None)
        clocks.listen(self._changed)

    def compare_with(self, recorded: float) -> None:
        """Compare with the time that the previous leader recorded, until another node reports its time."""
        self._recorded = recorded - self._clock.now()
        self._found = (0.0, float("inf"), None)

    def apart(self) -> Apart | None:
        """Return by how much the wall clock is wrong; None: it agrees with the other clocks."""
        now = self._clock.now()
        offset = self._clock.wall() - now
        at, at_offset, found = self._found
        if not (at <= now < at + GOOD_FOR and abs(offset - at_offset) < 1.0):
            found = self._compared(offset)
            self._found = now, offset, found
        return found

    def _compared(self, offset: float) -> Apart | None:
        others = [(_ahead(offset - at, age), node) for node, (at, age) in self._heard.items() if node not in self.own]
        if others:
            ahead, node = sorted(others)[len(others) // 2]
            # If these nodes become unreachable, their last readings remain the reference.
            self._start, self._jumped_at, self._recorded = offset - ahead, None, None
            return Apart(ahead, node) if abs(ahead) > MOST else None
        return self._jumped(offset)

    def _jumped(self, offset: float) -> Apart | None:
        recorded = self._recorded is not None and not -MOST <= offset - self._recorded <= OFF_FOR
        before = self._recorded if recorded and self._recorded is not None else self._start
        if not recorded and abs(offset - before) <= MOST:
            self._jumped_at = None
            return None
        now = self._clock.now()
        if self._jumped_at is None:
            self._jumped_at = now
        if now - self._jumped_at >= BELIEVED_AFTER:
            self._start, self._jumped_at, self._recorded = offset, None, None
            return None
        return Apart(offset - before, "", recorded)

    def _changed(self, key: str) -> None:
        node, entry = CLOCK.parse(key)["node"], self._clocks.entries.get(key)
        if entry is None:
            self._heard.pop(node, None)
            return
        # A reading from a listing was written some time ago. A live agent writes the next one on schedule.
        age = 0.0 if self._clocks.is_news(entry) else READ_EVERY + MOST
        self._heard[node] = entry.value.at - self._clock.now(), age


def _ahead(seconds: float, age: float) -> float:
    """Return the part of the difference that the age of the reading does not explain."""
    return seconds if seconds < 0 else max(0.0, seconds - age)
