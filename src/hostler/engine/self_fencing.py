"""Self-fencing: ends the process if it does not stop after it lost a leadership.

A leader that lost its key stops its work and exits. If it does not (its event loop hangs, a service does not stop, the
host was suspended), it must not continue to act as leader. A dedicated thread ends the process a quarter of the TTL
after the loss. The thread needs nothing from the event loop except the deadlines that it reads.
"""

from __future__ import annotations

import os
import select
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hostler.engine.elections import Leadership
    from hostler.kit.clock import Clock

GRACE = 4
"""The TTL of a leadership divided by this is the time between its loss and the end of the process."""

LOOK = 0.25
"""Longest time between two checks of the deadlines, in seconds."""


class Killer(Protocol):
    """Makes sure that the process ends after a loss. A simulation passes its own, which ends one simulated process."""

    def guard(self, leadership: Leadership) -> None:
        """Guard a leadership: end the process if it is overdue, unless it was released."""


def overdue_at(leadership: Leadership) -> float:
    """Return when the process must have ended, on the clock of the elections."""
    ended = leadership.deadline if leadership.lost_at is None else min(leadership.lost_at, leadership.deadline)
    return ended + leadership.ttl / GRACE


class ProcessKiller:
    """A daemon thread that ends this process with exit code 1. It is never stopped."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._guarded: dict[Leadership, None] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def guard(self, leadership: Leadership) -> None:
        with self._changed:
            self._guarded[leadership] = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="hostler killer", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _watch(self) -> None:
        with self._changed:
            while True:
                self._guarded = {leadership: None for leadership in self._guarded if not leadership.released}
                now = self._clock.now()
                overdue = [leadership for leadership in self._guarded if overdue_at(leadership) <= now]
                if overdue:
                    _kill(overdue)
                # Renewals only move a deadline away, but a lost key brings it near at once. So check several times
                # within the grace period after a loss.
                waits = [min(overdue_at(each) - now, each.ttl / GRACE / 4, LOOK) for each in self._guarded]
                self._changed.wait(max(0.001, min(waits)) if waits else None)


def _kill(overdue: list[Leadership]) -> None:
    keys = ", ".join(leadership.key for leadership in overdue)
    text = f"hostler: leadership {keys} was lost and the process did not stop in time; ending it now\n"
    with suppress(Exception):  # the process must end even if stderr cannot be written
        if select.select([], [2], [], 0)[1]:
            os.write(2, text.encode()[: select.PIPE_BUF])
    os._exit(1)
