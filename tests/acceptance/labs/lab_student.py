"""A student who does one thing after the other, and a front end that asks for each exactly once.

What was pushed and not answered by Redis is pushed again under the same mark, so that it is in the queue once. What
Redis itself lost, and nothing else, is asked for again.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any, TypeVar

from harness.pace import patience
from labman import Server, check
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")
LOOK = 0.05
LOST_AFTER = 2.5
"""Seconds, at most, after a loss in which everything that was not lost has been worked."""
_PUSH = "if redis.call('SET', KEYS[1], '1', 'NX', 'EX', 3600) then redis.call('RPUSH', KEYS[2], ARGV[1]) end return 1"


def connected(url: str) -> Any:
    """To Redis, by somebody who tries again by himself."""
    return Redis.from_url(url, socket_timeout=1.0, retry=Retry(NoBackoff(), 0))


async def push_once(client: Any, mark: str, queue: str, request: str) -> None:
    """One step: it is in the queue once, however often this is repeated."""
    await client.eval(_PUSH, 2, f"labman:{mark}", queue, request)


async def insist(call: Callable[[], Awaitable[T]], patience: float) -> T:
    """Until Redis answers."""
    end = time.monotonic() + patience
    while True:
        try:
            return await call()
        except (RedisError, OSError, TimeoutError):
            assert time.monotonic() < end, "Redis does not come back"
            await asyncio.sleep(LOOK)


class Losses:
    """When Redis last lost something."""

    at: float | None = None


class Student:
    """`asked`: the requests that Redis has taken, by queue."""

    def __init__(self, url: str, user: str, losses: Losses, *, patience: float) -> None:
        self.user, self._losses, self._patience = user, losses, patience
        self._redis = connected(url)
        self.asked = {"provision": 0, "decommission": 0}
        self._lab = 0

    async def aclose(self) -> None:
        await self._redis.aclose()

    async def start(self) -> Server:
        """A lab that it never had; until it can be logged into."""
        self._lab += 1
        found = await self._until("provision", lambda found: found is not None and found["available"])
        assert found is not None
        assert found["labId"] == self._lab, found
        return found

    async def stop(self) -> None:
        """Until its lab is gone."""
        await self._until("decommission", lambda found: found is None)

    async def _until(self, queue: str, is_so: Callable[[Server | None], bool]) -> Server | None:
        end = time.monotonic() + self._patience
        asked_at = await self._ask(queue)
        while True:
            found = await insist(self._look, self._patience)
            lost_at = self._losses.at
            certain = lost_at is None or time.monotonic() > lost_at + patience(
                LOST_AFTER
            )  # no record: it may be lost itself
            if is_so(found) and (found is not None or certain):
                return found
            assert time.monotonic() < end, f"{self.user}: {queue} of lab {self._lab}: still {found}"
            if lost_at is not None and lost_at >= asked_at and certain:
                asked_at = await self._ask(queue)
            await asyncio.sleep(LOOK)

    async def _ask(self, queue: str) -> float:
        self.asked[queue] += 1
        asked_at = time.monotonic()  # before: what was pushed may be lost before its answer is heard
        mark = f"{self.user}:{queue}:{self.asked[queue]}"
        request = json.dumps({"webuserid": self.user, "labId": self._lab})
        await insist(lambda: push_once(self._redis, mark, f"vmmanager:{queue}", request), self._patience)
        return asked_at

    async def _look(self) -> Server | None:
        text = await self._redis.get(f"vmmanager:servers:{self.user}")
        return None if text is None else check(text, self.user)
