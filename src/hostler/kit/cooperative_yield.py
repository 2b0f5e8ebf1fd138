"""Yielding to the event loop.

A coroutine that never waits never yields to the event loop: a loop that polls it would starve the very task it polls
for. Code that answers without waiting therefore yields from time to time.
"""

from __future__ import annotations

import asyncio


class Fairness:
    """Yields to the event loop once `span` seconds have passed since it last did."""

    __slots__ = ("_shared_at", "_span")

    def __init__(self, span: float = 0.001) -> None:
        self._span = span
        self._shared_at = 0.0

    async def share(self) -> None:
        """Let other ready tasks run first, if the last yield is long enough ago."""
        now = asyncio.get_running_loop().time()
        if now - self._shared_at > self._span:
            self._shared_at = now  # before the pause: one caller yields, not all that ask in the same iteration
            await asyncio.sleep(0)
