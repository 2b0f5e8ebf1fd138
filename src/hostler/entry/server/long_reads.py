"""Reads that go through thousands of records, such as decisions and the audit log: few at once, one of each account.

Each of them takes the event loop's time for up to a second, in pieces. An account that asks for many waits for itself.
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
"""Reads at once, of all accounts but administrators."""
WITHIN = 5.0
"""Seconds that a read waits for its turn."""


class LongReads:
    """One per server."""

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(AT_ONCE)
        self._own: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, caller: Caller, what: str) -> AsyncIterator[None]:
        """Hold a turn; administrators need none. Unavailable: others, or others of the account, take too long."""
        if caller.is_administrator:
            yield
            return
        own = self._own.setdefault(caller.name, asyncio.Lock())
        try:
            async with asyncio.timeout(WITHIN):
                await own.acquire()
        except TimeoutError:
            raise Unavailable(f"{what}: other such reads of {caller.name} are under way; make one at a time") from None
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
            raise Unavailable(f"{what}: other such reads are under way; try again in a moment") from None
