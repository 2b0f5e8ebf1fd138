"""Lab queues and records by their URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.drivers.redis_url import redis_link
from hostler.keys.lab import LabNames
from hostler.ports.url import extra
from hostler.wiring.url import opened_by

if TYPE_CHECKING:
    from collections.abc import Callable
    from urllib.parse import SplitResult

    from hostler.drivers.redis_client import RedisLink
    from hostler.ports.inbox import Inbox, LabRecords
    from hostler.ports.url import Options

_WHAT = "Redis URL of the labs"


def open_inbox(url: str, *, names: LabNames | None = None) -> Inbox:
    """Return the queues at `redis://host:port/db` or `rediss://…`, to be entered with `async with`."""
    with extra("redis"):
        from hostler.drivers.inbox.redis import RedisInbox

        return RedisInbox(_link(url, "hostler.wiring.open_inbox"), names or LabNames())


def open_board(url: str, *, names: LabNames | None = None) -> LabRecords:
    """Return the records at `redis://host:port/db` or `rediss://…`, to be entered with `async with`."""
    with extra("redis"):
        from hostler.drivers.inbox.redis import RedisLabRecords

        return RedisLabRecords(_link(url, "hostler.wiring.open_board"), names or LabNames())


def _link(url: str, opener: str) -> RedisLink:
    def linked(parts: SplitResult, options: Options) -> RedisLink:
        return redis_link(parts, options, _WHAT, opener=opener, fenced=True)

    openers: dict[str, Callable[[SplitResult, Options], RedisLink]] = {"redis": linked, "rediss": linked}
    return opened_by(url, openers, _WHAT)
