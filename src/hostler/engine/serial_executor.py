"""Long work beside the event loop, one piece at a time: whoever else wants some waits for a while, or comes again.

A thread takes its share of the interpreter from the loop. One such share the loop can spare; ten it cannot, and then
nothing is renewed in time, leadership among it. Nor are there full collections of garbage meanwhile: of a large tree
each takes half a second, and the loop stands still.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from hostler.errors import Unavailable
from hostler.kit import gc_pause

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")

WITHIN = 5.0
"""Seconds that one waits for one's turn."""


class Turn:
    """One for each kind of work in a process. `busy`: what is said to who waited in vain."""

    def __init__(self, what: str, *, busy: str = "others are being read", within: float = WITHIN) -> None:
        self._what, self._busy, self._within = what, busy, within
        self._taken = asyncio.Lock()

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `work` gives, in a thread of its own. Unavailable: others are at it for too long."""
        try:
            async with asyncio.timeout(self._within):
                await self._taken.acquire()
        except TimeoutError:
            raise Unavailable(f"{self._what}: {self._busy}; try again in a moment") from None
        working = asyncio.ensure_future(asyncio.to_thread(_worked, lambda: work(*args, **kwargs)))
        working.add_done_callback(self._done)  # a thread goes on when nobody waits for it any more
        return await asyncio.shield(working)

    def _done(self, working: asyncio.Future[T]) -> None:
        self._taken.release()
        if not working.cancelled():
            working.exception()  # seen, even if nobody waits for it


def _worked(work: Callable[[], T]) -> T:
    with gc_pause.put_off():
        return work()
