"""Serial executor: runs blocking work in a thread, one job at a time.

Callers wait a limited time for their turn, then get `Unavailable`. A thread competes with the event loop for the
interpreter. The loop can spare the time of one thread, but not of ten: then nothing is renewed in time, including
leadership. Full garbage collections are postponed during the work: on a large object tree each blocks the loop for half
a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from hostler.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

P = ParamSpec("P")
T = TypeVar("T")


NEVER = 2**31 - 1
"""The largest threshold that the interpreter accepts."""

_lock = threading.Lock()
_usual: list[tuple[int, int, int]] = []
"""One item per active `put_off`: the threshold before the first of them."""


@contextlib.contextmanager
def put_off() -> Iterator[None]:
    """Prevent full collections inside this context, in any thread; young garbage is collected as usual."""
    with _lock:
        _usual.append(_usual[0] if _usual else gc.get_threshold())
        gc.set_threshold(*_usual[0][:2], NEVER)
    try:
        yield
    finally:
        with _lock:
            usual = _usual.pop()
            if not _usual:
                gc.set_threshold(*usual)


WITHIN = 5.0
"""Seconds that a caller waits for its turn."""


class Turn:
    """Executes one kind of work. One per kind and process. `busy`: the message for a caller whose wait timed out."""

    def __init__(self, what: str, *, busy: str = "other requests are being processed", within: float = WITHIN) -> None:
        self._what, self._busy, self._within = what, busy, within
        self._taken = asyncio.Lock()

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of `work`, run in a thread. Unavailable: other jobs took too long."""
        try:
            async with asyncio.timeout(self._within):
                await self._taken.acquire()
        except TimeoutError:
            raise Unavailable(f"{self._what}: {self._busy}; try again in a moment") from None
        working = asyncio.ensure_future(asyncio.to_thread(_work, lambda: work(*args, **kwargs)))
        working.add_done_callback(self._done)  # a thread continues even if its caller no longer waits
        return await asyncio.shield(working)

    def _done(self, working: asyncio.Future[T]) -> None:
        self._taken.release()
        if not working.cancelled():
            working.exception()  # retrieve it, even if no caller waits


def _work(work: Callable[[], T]) -> T:
    with put_off():
        return work()
