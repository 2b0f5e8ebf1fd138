"""Limits of concurrent streams: events, consoles, connections, shells and terminals share one count.

Each stream needs memory and a file descriptor, so the total is limited. No account can use up all streams, and some are
reserved for administrators, who must be able to connect while all others are in use.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from hostler.errors import Unavailable
from hostler.kit.plural import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostler.entry.server.route import Asked

FEW = 50
"""Minimum share of an account, up to half of a small total: dozens of tabs with one or two streams each."""


def share(most: int, *, manages: bool) -> int:
    """Return how many of `most` streams one account may have; `manages`: it manages accounts everywhere."""
    if manages:
        return max(most // 2, min(FEW, most))
    return max(most // 10, min(FEW, most // 2), 1)


def kept(most: int) -> int:
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
    if feed.streams >= (most if manages else most - kept(most)):
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
