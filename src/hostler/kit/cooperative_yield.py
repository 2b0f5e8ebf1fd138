"""Letting others run.

A coroutine that never has to wait never gives the event loop back: a loop that polls it would starve the very task it
polls for. Whoever answers at once therefore steps back now and then.
"""

from __future__ import annotations

import asyncio


class Fairness:
    """Gives the event loop back once `span` seconds have passed since it last did."""

    __slots__ = ("_shared_at", "_span")

    def __init__(self, span: float = 0.001) -> None:
        self._span = span
        self._shared_at = 0.0

    async def share(self) -> None:
        """Let what is ready run first, if it has been waiting long enough."""
        now = asyncio.get_running_loop().time()
        if now - self._shared_at > self._span:
            self._shared_at = now  # before the pause: one steps back, and not everybody who asks in the same turn
            await asyncio.sleep(0)
