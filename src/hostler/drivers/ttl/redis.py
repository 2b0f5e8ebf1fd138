"""Records in Redis (6.2 or newer): one script per verb, so each verb is atomic on the server.

A record is a plain string under its own key, with the server's own expiry in milliseconds: `redis-cli get` shows it.
The clock is the server's. Scripts announce their changes on a channel per key, so that readers need not poll; an expiry
is not announced, but its time is known.

Redis may lose writes that it has acknowledged: when it crashes without `appendfsync always`, when a replica takes over
that the last writes had not reached, when memory is short and its policy evicts keys. Then a fence can go back.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from hostler.drivers.redis_client import ANSWERS
from hostler.drivers.ttl.redis_listener import Listener
from hostler.errors import Forbidden, Invalid
from hostler.kit.tasks import Closing
from hostler.ports.store import check_key
from hostler.ports.ttl import check_life, check_record, check_swap

if TYPE_CHECKING:
    from hostler.drivers.redis_client import Answers, RedisLink

POLL = 1.0
"""Seconds after which a waiting reader polls: announcements can be lost, and other programs write without them."""

# KEYS[1] the record; ARGV[1] its channel, then values, then the options of SET. The user may have no permission to
# publish: the record counts, so the result of PUBLISH is ignored.
_INSERT = """
if not redis.call('SET', KEYS[1], ARGV[2], 'NX', unpack(ARGV, 3)) then return 0 end
redis.pcall('PUBLISH', ARGV[1], '')
return 1
"""
_SWAP = """
if redis.call('GET', KEYS[1]) ~= ARGV[2] then return 0 end
redis.call('SET', KEYS[1], ARGV[3], unpack(ARGV, 4))
if ARGV[2] ~= ARGV[3] then redis.pcall('PUBLISH', ARGV[1], '') end
return 1
"""
_DELETE = """
if redis.call('GET', KEYS[1]) ~= ARGV[2] then return 0 end
redis.call('DEL', KEYS[1])
redis.pcall('PUBLISH', ARGV[1], '')
return 1
"""
_READ = "return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])}"

_ANSWERS: Answers = {
    **ANSWERS,
    "NOPERM": (
        Forbidden,
        "the user has no permission for this; it needs eval, get, set, del, pttl and publish on these keys",
    ),
    "WRONGTYPE": (Invalid, "the key does not hold a record; choose another key or remove it"),
}


class RedisTtlStorage(Closing):
    """Owns its link: closes it when it is closed."""

    def __init__(self, link: RedisLink) -> None:
        link.answers = _ANSWERS
        self._link, self._calls = link, link.calls
        self._listener = Listener(link.connect)

    async def __aenter__(self) -> Self:
        self._calls.open()
        return self

    async def aclose(self) -> None:
        await self._calls.shut()
        await self._listener.aclose()
        await self._link.aclose()

    def lateness(self, ttl: float) -> float:  # noqa: ARG002 - the same for every ttl
        return 0.25

    # The verbs

    async def insert_if_not_exist(self, key: str, value: str, *, ttl: float) -> bool:
        check_record(key, value)
        return await self._written("insert", _INSERT, key, value, *_life(ttl))

    async def compare_and_swap(self, key: str, old: str, new: str, *, ttl: float) -> bool:
        check_swap(key, old, new)
        return await self._written("swap", _SWAP, key, old, new, *_life(ttl))

    async def compare_and_delete(self, key: str, old: str) -> bool:
        check_record(key, old)
        return await self._written("delete", _DELETE, key, old)

    async def get(self, key: str) -> str | None:
        check_key(key)
        async with self._calls.call("get", key, writes=False) as call:
            return _text(key, await self._link.ask(call, "GET", key))

    async def time_left(self, key: str) -> float | None:
        check_key(key)
        value, left = await self._read(key)
        return None if value is None or math.isinf(left) else left

    async def wait_change(self, key: str, seen: str | None, *, within: float) -> str | None:
        check_key(key)
        self._calls.check()
        now = asyncio.get_running_loop().time
        end = now() + within
        async with self._listener.listening(self._channel(key)) as announced:
            while True:
                announced.clear()
                value, life = await self._read(key)
                if value != seen or now() >= end:
                    return value
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(end - now(), life, POLL)):
                        await announced.wait()

    # Internal

    def _channel(self, key: str) -> str:
        return f"hostler:ttl:{self._link.db}:{key}"

    async def _written(self, verb: str, script: str, key: str, *arguments: str | int) -> bool:
        async with self._calls.call(verb, key, writes=True) as call:
            answer: int = await self._link.ask(call, "EVAL", script, 1, key, self._channel(key), *arguments)
            return answer == 1

    async def _read(self, key: str) -> tuple[str | None, float]:
        """Return the record and its remaining seconds."""
        async with self._calls.call("get", key, writes=False) as call:
            value, left = await self._link.ask(call, "EVAL", _READ, 1, key)
            return _text(key, value), (left + 1) / 1000 if left >= 0 else math.inf


def _life(ttl: float) -> tuple[str | int, ...]:
    """Return the options of SET.

    One millisecond is added, because the server counts from the last full one: never early.
    """
    ttl = check_life(ttl)
    return ("PX", math.ceil(ttl * 1000) + 1) if ttl else ()


def _text(key: str, value: bytes | None) -> str | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Invalid(f"record {key!r}: the value is not text, so it is not a record; choose another key") from None
