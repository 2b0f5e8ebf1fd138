"""Ends a one-process control plane whose leader work does not stop after it loses its leadership.

`hostler replica` ends when it loses its key, and its supervisor restarts it. `hostler up` has no supervisor: a laptop
that wakes up after an hour has lost its leadership, stops its leader work, and becomes a candidate again. Fences
prevent late writes of such a process. This watchdog ends the process if the work does not stop.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from hostler.engine.self_fencing import GRACE, overdue_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.engine.elections import Leadership
    from hostler.engine.service import Standing
    from hostler.kit.clock import Clock

LOOK = 0.25


class Watchdog:
    """A killer that counts the grace period only while the process is awake: in consecutive short checks.

    It is the first of the controllers, so it is stopped after all others, which is the end of the work. Cleaning up
    after that may take longer than the grace period while the store is unreachable.
    """

    name = "watchdog"

    def __init__(self, clock: Clock, *, end: Callable[[str], None] | None = None) -> None:
        self._clock, self._end = clock, end or _end
        self._guarded: dict[Leadership, float] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def guard(self, leadership: Leadership) -> None:
        """End the process if the leadership is over and `stopped` is not called in time."""
        with self._changed:
            self._guarded[leadership] = 0.0
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="hostler watchdog", daemon=True)
                self._thread.start()
            self._changed.notify()

    def stopped(self) -> None:
        """Stop watching every leadership so far: its work has stopped."""
        with self._changed:
            self._guarded.clear()
            self._changed.notify()

    # Service

    async def start(self, standing: Standing) -> None:
        """Do nothing: `guard` was called with the leadership before."""

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def stop(self) -> None:
        self.stopped()

    # Internal

    def _watch(self) -> None:
        with self._changed:
            while self._guarded:
                pause = min((LOOK, *(each.ttl / GRACE / 4 for each in self._guarded)))
                self._changed.wait(pause)
                self._guarded = {each: seen for each, seen in self._guarded.items() if not each.released}
                for each in self._guarded:
                    # Each check counts at most one pause, however long the process was suspended in between.
                    late = overdue_at(each) - each.ttl / GRACE <= self._clock.now()
                    self._guarded[each] = self._guarded[each] + pause if late else 0.0
                    if self._guarded[each] > each.ttl / GRACE:
                        self._end(
                            f"leadership {each.key} was lost and its work did not stop in time; ending the process"
                        )
            self._thread = None


def _end(why: str) -> None:
    with suppress(Exception):  # the process must end even if its output cannot be written
        if select.select([], [2], [], 0)[1]:
            os.write(2, f"hostler: {time.strftime('%H:%M:%S')} {why}\n".encode())
    os._exit(1)
