"""Records in Redis (6.2 or newer): one script per verb, so each verb is atomic on the server.

A record is a plain string under its own key, with the server's own expiry in milliseconds: `redis-cli get` shows it.
The clock is the server's. Scripts announce their changes on a channel per key, so that readers need not poll; an expiry
is not announced, but its time is known.

Redis may lose writes that it has acknowledged: when it crashes without `appendfsync always`, when a replica takes over
that the last writes had not reached, when memory is short and its policy evicts keys. Then a fence can go back.

One connection receives the announcements for all waiting readers.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Self

from redis.exceptions import RedisError

from hostler.drivers.redis_client import ANSWERS
from hostler.errors import Forbidden, Invalid
from hostler.kit.rate_limit import Backoff
from hostler.kit.tasks import Closing
from hostler.ports.store import check_key
from hostler.ports.ttl import check_life, check_record, check_swap

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from redis.asyncio import Connection

    from hostler.drivers.redis_client import Answers, RedisLink


class Listener:
    """Subscribes to the channels that have waiting readers; connected only while there are any.

    An announcement may be lost (the connection breaks, the server forbids subscribing), so readers must also poll.
    After each reconnection all readers are woken, because something may have been missed.
    """

    def __init__(self, connect: Callable[[], Awaitable[Connection]]) -> None:
        self._connect = connect
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def listening(self, channel: str) -> AsyncIterator[asyncio.Event]:
        """Yield an event that is set after each announcement on `channel`."""
        event = asyncio.Event()
        first = channel not in self._waiting
        self._waiting.setdefault(channel, set()).add(event)
        try:
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._listen(), name="redis: announcements")
            elif first:
                await self._tell("SUBSCRIBE", channel)
            yield event
        finally:
            self._waiting[channel].discard(event)
            if not self._waiting[channel]:
                del self._waiting[channel]
                await (self._tell("UNSUBSCRIBE", channel) if self._waiting else self.aclose())

    async def aclose(self) -> None:
        """Close the connection, and wake waiting readers a last time."""
        for event in (event for events in self._waiting.values() for event in events):
            event.set()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _tell(self, command: str, channel: str) -> None:
        connection = self._connection
        if connection is not None:
            with suppress(RedisError, OSError):  # the listening task notices it too
                await connection.send_command(command, channel)

    async def _listen(self) -> None:
        backoff = Backoff(0.1, 2.0)
        while True:
            with suppress(RedisError, OSError):
                connection = await self._connect()
                try:
                    # first: a reader that joins while this is being sent subscribes by itself
                    self._connection = connection
                    await connection.send_command("SUBSCRIBE", *self._waiting)
                    backoff.reset()
                    await self._hear(connection)
                finally:
                    self._connection = None
                    with suppress(RedisError, OSError):
                        await connection.disconnect(nowait=True)
            await asyncio.sleep(backoff.next())

    async def _hear(self, connection: Connection) -> None:
        while True:
            # A message, or the confirmation of a subscription: earlier announcements were not received.
            _, channel, *_ = await connection.read_response(timeout=math.inf)
            for event in self._waiting.get(channel.decode(errors="replace"), ()):
                event.set()


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
