"""Limit of reads that scan thousands of records, such as decisions and the audit log: one per account at a time.

Each read uses the event loop for up to a second, in slices. Requests of one account wait for each other.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from hostler.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hostler.engine.request import Caller

AT_ONCE = 2
"""Concurrent reads of all accounts except administrators."""
WITHIN = 5.0
"""Seconds that a read waits for its turn."""


class LongReads:
    """The limit of one server."""

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(AT_ONCE)
        self._own: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, caller: Caller, what: str) -> AsyncIterator[None]:
        """Wait for a turn and hold it; administrators need none. Unavailable: other reads take too long."""
        if caller.is_administrator:
            yield
            return
        own = self._own.setdefault(caller.name, asyncio.Lock())
        try:
            async with asyncio.timeout(WITHIN):
                await own.acquire()
        except TimeoutError:
            raise Unavailable(
                f"{what}: another long read of {caller.name} is in progress; send one at a time"
            ) from None
        try:
            await self._wait(what)
            try:
                yield
            finally:
                self._all.release()
        finally:
            own.release()

    async def _wait(self, what: str) -> None:
        try:
            async with asyncio.timeout(WITHIN):
                await self._all.acquire()
        except TimeoutError:
            raise Unavailable(f"{what}: too many long reads are in progress; try again in a moment") from None
