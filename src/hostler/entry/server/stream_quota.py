"""Who may have how many streams at once: events, consoles, connections, shells and terminals share one count.

Each costs memory and a file, so there is a limit to all of them. No account takes so many that others find none, and
some are kept for administrators: who is to find out what is wrong must get in while everything else is full.
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
"""So many an account may have where all are few, at most half of those: dozens of tabs with one or two streams each."""


def share(most: int, *, manages: bool) -> int:
    """Of `most` streams those that one account may have; `manages`: it manages accounts everywhere."""
    if manages:
        return max(most // 2, min(FEW, most))
    return max(most // 10, min(FEW, most // 2), 1)


def kept(most: int) -> int:
    """Of `most` streams those that only who manages accounts everywhere gets."""
    return most // 10


@contextmanager
def place_for(asked: Asked, what: str, *, of: str | None = None) -> Iterator[None]:
    """A place for one stream. Unavailable: there is none, or the account has its share, by whichever of its tokens.

    `of`: whom it counts for in place of the account.
    """
    feed, most, manages = asked.feed, asked.plan.max_streams, asked.caller.is_administrator
    holder = asked.caller.name if of is None else of
    if feed.closing:
        raise Unavailable(f"{what}: the server is closing; try again later")
    if feed.streams >= (most if manages else most - kept(most)):
        raise Unavailable(f"{what}: {feed.streams} streams are open, no more are taken; try again later")
    if feed.held[holder] >= share(most, manages=manages):
        raise Unavailable(
            f"{what}: {holder} has {counted(feed.held[holder], 'stream')} open, and nobody gets more;"
            " close some of them: pages, consoles, programs that follow events"
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
