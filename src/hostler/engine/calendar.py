"""Whether this process's calendar agrees with those of others: before something ends because its time is over.

Every agent writes its calendar time every five minutes (`CLOCK`). What is compared is the difference between
two calendars: a reading that arrived is carried on by this process's own monotonic clock, so it does not grow old. The
median of all nodes counts, so that one wrong clock among many decides nothing. Nodes of this very process have the same
clock, and say nothing. Where no other node says anything, a calendar that jumps is not believed for an hour. Nor is one
that is more than a day ahead of what the leader recorded last (`LAST_CLOCK`), or behind it: whether the control plane
was off for so long, or the calendar is wrong, is not known when a process starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hostler.keys.node import CLOCK

if TYPE_CHECKING:
    from collections.abc import Collection

    from hostler.keys.mirror import Mirror
    from hostler.kit.clock import Clock
    from hostler.model.node import ClockReading

READ_EVERY = 300.0
"""Seconds after which an agent writes its time again."""
MOST = 60.0
"""Seconds by which two calendars may differ."""
GOOD_FOR = 1.0
"""Seconds for which the answer is kept: it is asked for each lab."""
BELIEVED_AFTER = 3600.0
"""Seconds after which a jump is believed that no other node contradicts."""
RECORD_EVERY = 3600.0
"""Seconds after which the leader records its calendar again."""
RECORD_AFTER = 60.0
"""Seconds for which a leader leads before it records its calendar."""
OFF_FOR = 86400.0
"""Seconds for which a control plane may have been off without a doubt about its calendar."""


class Apart(msgspec.Struct, frozen=True):
    """This process's calendar is not that of the others."""

    seconds: float
    """By which it is ahead; below 0: behind."""
    of: str
    """A node whose calendar it is not; empty: its own of before."""
    recorded: bool = False
    """Before is what an earlier process recorded, and not this one."""

    def __str__(self) -> str:
        """Say it in a part of a sentence."""
        than = f"the clock of node {self.of}" if self.of else "before: it was set"
        if self.recorded:
            why = "the control plane was off for so long, or it is wrong" if self.seconds > 0 else "it is wrong, or was"
            than = f"what was recorded last: {why}"
        return f"{abs(self.seconds):.0f} s {'ahead of' if self.seconds > 0 else 'behind'} {than}"


class Calendar:
    """Made once per process, on the mirror of all readings."""

    def __init__(self, clocks: Mirror[ClockReading], *, clock: Clock) -> None:
        self._clocks, self._clock = clocks, clock
        self.own: Collection[str] = ()
        """The nodes of this very process; it may grow."""
        self._heard: dict[str, tuple[float, float]] = {}  # by node: its calendar less our clock, its age
        self._start = clock.wall() - clock.now()
        self._jumped_at: float | None = None
        self._recorded: float | None = None
        """What was recorded before this process led, less our clock; None: nothing, or it no longer counts."""
        self._found: tuple[float, float, Apart | None] = (0.0, float("inf"), None)
        clocks.listen(self._changed)

    def compare_with(self, recorded: float) -> None:
        """Count what the leader before recorded, for as long as no other node says anything."""
        self._recorded = recorded - self._clock.now()
        self._found = (0.0, float("inf"), None)

    def apart(self) -> Apart | None:
        """Return by how much the calendar is wrong; None: it agrees with the others."""
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
            # If they fall silent, what they said last goes on to count.
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
        # One that was found in a listing was written some time ago; a living agent writes the next one in time.
        age = 0.0 if self._clocks.is_news(entry) else READ_EVERY + MOST
        self._heard[node] = entry.value.at - self._clock.now(), age


def _ahead(seconds: float, age: float) -> float:
    """The part of it that the age of what is compared with does not explain."""
    return seconds if seconds < 0 else max(0.0, seconds - age)
