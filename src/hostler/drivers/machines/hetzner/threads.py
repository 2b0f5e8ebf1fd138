"""Calls that block, each in a thread of its own that nobody has to wait for.

A thread that reads ends with the process: whatever it hears is of no use then. One that writes may be in the middle of
something, so who leaves waits for it, but only for a while: the next start looks at what came of it, as after a kill.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
LEAVES_WITHIN = 3.0
"""Seconds that who leaves waits for what is being written."""


class Threads:
    """Up to `most` calls at once."""

    def __init__(self, most: int) -> None:
        self._free = asyncio.Semaphore(most)
        self._writes: dict[asyncio.Future[Any], str] = {}
        """Under way, and about what."""
        self._left: set[asyncio.Future[Any]] = set()
        """Those of them that nobody waits for any more."""

    async def read(self, call: Callable[[], T]) -> T:
        """Who is cancelled waits for nothing."""
        await self._free.acquire()
        return await self._begun(call)

    async def write(self, what: str, call: Callable[[], T]) -> T:
        """Who is cancelled waits for its end, for a while; after that see `settled`."""
        await self._free.acquire()
        answer = self._begun(call)
        self._writes[answer] = what
        answer.add_done_callback(self._ended)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            await self._leave({answer})
            raise

    async def settled(self, what: str) -> None:
        """Once nothing is written about that any more which somebody has left behind."""
        while left := [answer for answer in self._left if self._writes[answer] == what]:
            await asyncio.wait(left)

    async def aclose(self) -> None:
        """Wait for what is being written, unless somebody has waited for it long enough."""
        await self._leave(self._writes.keys() - self._left)

    async def _leave(self, answers: set[asyncio.Future[Any]]) -> None:
        """Wait for them for a while, however often who waits is cancelled."""
        loop = asyncio.get_running_loop()
        until = loop.time() + LEAVES_WITHIN
        while answers and (left := until - loop.time()) > 0:
            with contextlib.suppress(asyncio.CancelledError):
                _, answers = await asyncio.wait(answers, timeout=left)
        self._left |= answers & self._writes.keys()

    def _ended(self, answer: asyncio.Future[Any]) -> None:
        del self._writes[answer]
        self._left.discard(answer)
        if not answer.cancelled():
            answer.exception()  # who was there to hear it has heard it

    def _begun(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """For who has a free place, which is given back at its end."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def done(finish: Callable[[], None]) -> None:
            self._free.release()
            if not answer.done():
                finish()

        def work() -> None:
            try:
                finish = partial(answer.set_result, call())
            except Exception as error:  # noqa: BLE001 - raised where it is waited for
                finish = partial(answer.set_exception, error)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(done, finish)
            del finish  # which an error's own frames would hold, and these their connections

        threading.Thread(target=work, name="hetzner", daemon=True).start()
        return answer
