"""Limits of what one account may do at once: long reads, streams and channels."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from hostler.errors import Unavailable
from hostler.kit.plural import counted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from hostler.engine.request import Caller
    from hostler.entry.server.route import Asked


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


FEW = 50
"""Minimum share of an account, up to half of a small total: dozens of tabs with one or two streams each."""


def share(most: int, *, manages: bool) -> int:
    """Return how many of `most` streams one account may have; `manages`: it manages accounts everywhere."""
    if manages:
        return max(most // 2, min(FEW, most))
    return max(most // 10, min(FEW, most // 2), 1)


def reserved_streams(most: int) -> int:
    """Return how many of `most` streams are reserved for accounts that manage accounts everywhere."""
    return most // 10


@contextmanager
def place_for(asked: Asked, what: str, *, of: str | None = None) -> Iterator[None]:
    """Hold a slot for one stream. Unavailable: none is free, or the account has its share, with any of its tokens.

    `of`: whom the stream counts for, instead of the account.
    """
    feed, most, manages = asked.feed, asked.plan.max_streams, asked.caller.is_administrator
    holder = asked.caller.name if of is None else of
    if feed.closing:
        raise Unavailable(f"{what}: the server is closing; try again later")
    if feed.streams >= (most if manages else most - reserved_streams(most)):
        raise Unavailable(f"{what}: {feed.streams} streams are open, the limit; try again later")
    if feed.held[holder] >= share(most, manages=manages):
        raise Unavailable(
            f"{what}: {holder} has {counted(feed.held[holder], 'stream')} open, the limit per account;"
            " close some of them: pages, consoles, programs that watch events"
        )
    feed.streams += 1
    feed.held[holder] += 1
    try:
        yield
    finally:
        feed.streams -= 1
        feed.held[holder] -= 1
        if not feed.held[holder]:
            del feed.held[holder]
