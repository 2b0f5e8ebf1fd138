"""What keeps a one-process control plane honest when it loses its leadership, without ending it for having slept.

`hostler replica` ends when it loses its key, and its supervisor starts it again. `hostler up` has no supervisor: a
laptop that slept an hour wakes up without its leadership, stops what it did as a leader, and stands anew. Fences keep
what a sleeper still has in hand from being written; this watchdog ends the process if the work does not stop.
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
    """A killer that counts the grace while the process is awake: so many looks in a row, each a moment apart.

    As the first of the controllers it is stopped when all the others have, and that is the end of the work: tidying up
    after it may take longer than the grace while the store is away.
    """

    name = "watchdog"

    def __init__(self, clock: Clock, *, end: Callable[[str], None] | None = None) -> None:
        self._clock, self._end = clock, end or _end
        self._guarded: dict[Leadership, float] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def guard(self, leadership: Leadership) -> None:
        """End the process if the leadership is over, and nobody says that its work has stopped."""
        with self._changed:
            self._guarded[leadership] = 0.0
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="hostler watchdog", daemon=True)
                self._thread.start()
            self._changed.notify()

    def stopped(self) -> None:
        """The work of every leadership so far has stopped: none of them is watched any more."""
        with self._changed:
            self._guarded.clear()
            self._changed.notify()

    # As a service

    async def start(self, standing: Standing) -> None:
        """Nothing: it was told of the leadership before."""

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def stop(self) -> None:
        self.stopped()

    # Inside

    def _watch(self) -> None:
        with self._changed:
            while self._guarded:
                pause = min((LOOK, *(each.ttl / GRACE / 4 for each in self._guarded)))
                self._changed.wait(pause)
                self._guarded = {each: seen for each, seen in self._guarded.items() if not each.released}
                for each in self._guarded:
                    # At most one pause is counted for each look, however long the process was suspended meanwhile.
                    late = overdue_at(each) - each.ttl / GRACE <= self._clock.now()
                    self._guarded[each] = self._guarded[each] + pause if late else 0.0
                    if self._guarded[each] > each.ttl / GRACE:
                        self._end(
                            f"leadership {each.key} was lost and its work did not stop in time; ending the process"
                        )
            self._thread = None


def _end(why: str) -> None:
    with suppress(Exception):  # the end must come also when nobody is there to read why
        if select.select([], [2], [], 0)[1]:
            os.write(2, f"hostler: {time.strftime('%H:%M:%S')} {why}\n".encode())
    os._exit(1)
