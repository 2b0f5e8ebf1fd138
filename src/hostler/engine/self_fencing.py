"""Ends the process when a leadership has ended and the process has not.

A leader that lost its key stops its work and exits. If it does not (its event loop hangs, a service does not stop, the
machine slept), it must not go on believing: a quarter of the leadership's life after the loss the process is ended from
a thread of its own, which needs nothing from the event loop but the deadlines it reads.
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
"""A leadership's life divided by this is the time between its loss and the end of the process."""

LOOK = 0.25
"""Seconds between two looks at the deadlines, at most."""


class Killer(Protocol):
    """What makes sure that a loss is the end. A simulation brings its own, which ends one simulated process."""

    def guard(self, leadership: Leadership) -> None:
        """From now on, end the process if this leadership is overdue; not once it was given up in good order."""


def overdue_at(leadership: Leadership) -> float:
    """When the process must have ended, on the clock of the elections."""
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
                # A deadline only moves away while it is renewed, but comes near at once when the key is lost: so look
                # several times within the grace that a loss leaves.
                waits = [min(overdue_at(each) - now, each.ttl / GRACE / 4, LOOK) for each in self._guarded]
                self._changed.wait(max(0.001, min(waits)) if waits else None)


def _kill(overdue: list[Leadership]) -> None:
    keys = ", ".join(leadership.key for leadership in overdue)
    text = f"hostler: leadership {keys} was lost and the process did not stop in time; ending it now\n"
    with suppress(Exception):  # the end must come also when nobody is there to read why
        if select.select([], [2], [], 0)[1]:
            os.write(2, text.encode()[: select.PIPE_BUF])
    os._exit(1)
