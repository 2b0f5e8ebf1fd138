"""Blocking calls, each in its own daemon thread.

A thread that reads dies with the process: its result is of no use then. A thread that writes may be in the middle of a
change, so cancelled callers and `aclose` wait for it up to `LEAVES_WITHIN` seconds. After that the next start reads the
outcome from the API, as after a kill.
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
"""Seconds that a cancelled or closing caller waits for a running write."""


class Threads:
    """Runs up to `most` calls at once."""

    def __init__(self, most: int) -> None:
        self._free = asyncio.Semaphore(most)
        self._writes: dict[asyncio.Future[Any], str] = {}
        """Running writes, with the subject of each."""
        self._left: set[asyncio.Future[Any]] = set()
        """Running writes that no caller waits for any more."""

    async def read(self, call: Callable[[], T]) -> T:
        """Run a call that only reads. A cancelled caller returns at once."""
        await self._free.acquire()
        return await self._begun(call)

    async def write(self, what: str, call: Callable[[], T]) -> T:
        """Run a call that writes. A cancelled caller waits up to `LEAVES_WITHIN` seconds for its end; see `settled`."""
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
        """Wait until no abandoned write about `what` is running."""
        while left := [answer for answer in self._left if self._writes[answer] == what]:
            await asyncio.wait(left)

    async def aclose(self) -> None:
        """Wait up to `LEAVES_WITHIN` seconds for running writes, except those already abandoned."""
        await self._leave(self._writes.keys() - self._left)

    async def _leave(self, answers: set[asyncio.Future[Any]]) -> None:
        """Wait up to `LEAVES_WITHIN` seconds for these writes, even when cancelled; then mark the rest as abandoned."""
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
            answer.exception()  # marks the exception as retrieved

    def _begun(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Start a thread for the call. The caller has acquired a slot, which is released when the call ends."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def done(finish: Callable[[], None]) -> None:
            self._free.release()
            if not answer.done():
                finish()

        def work() -> None:
            try:
                finish = partial(answer.set_result, call())
            except Exception as error:  # noqa: BLE001 - raised to the caller
                finish = partial(answer.set_exception, error)
            with contextlib.suppress(RuntimeError):  # the loop is closed, and no caller waits
                loop.call_soon_threadsafe(done, finish)
            del finish  # the frames of an exception would keep it, and with it their connections, alive

        threading.Thread(target=work, name="hetzner", daemon=True).start()
        return answer
