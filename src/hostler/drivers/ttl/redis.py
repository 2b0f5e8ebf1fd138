"""Records in Redis (6.2 or newer): one script a verb, so each is one step of the server.

A record is a plain string under its own key, with the server's own expiry in milliseconds: `redis-cli get` shows it.
The clock is the server's. Scripts announce what they changed on a channel beside the key, so that nobody needs to poll
for it; what lapses is not announced, but its time is known.

What Redis has acknowledged it may still forget: when it crashes without `appendfsync always`, when a replica takes over
that the last writes had not reached, when memory is short and its policy evicts. Then a fence can go back.
"""

from __future__ import annotations

import asyncio
import math
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from redis.asyncio import Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, ConnectionError, RedisError, ResponseError  # noqa: A004

from hostler.drivers.ttl.calls import Calls
from hostler.drivers.ttl.redis_listener import Listener
from hostler.errors import Forbidden, HostlerError, Invalid, Refused, Unavailable
from hostler.ports.store import check_key
from hostler.ports.ttl import check_life, check_record, check_swap

if TYPE_CHECKING:
    from types import TracebackType

    from hostler.drivers.ttl.calls import Call

CONNECTIONS = 16
"""At most so many at once; further calls wait their turn."""
POLL = 1.0
"""Seconds after which a waiting reader looks for itself: announcements can be lost, and others write without them."""

# KEYS[1] the record; ARGV[1] its channel, then values, then the options of SET. An announcement may be forbidden to
# this user: the record counts, so what comes of it is not looked at.
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

_ANSWERS: dict[str, tuple[type[HostlerError], str]] = {
    "NOAUTH": (Forbidden, "the server wants a password; put it into the URL"),
    "WRONGPASS": (Forbidden, "wrong user or password; correct them in the URL"),
    "NOPERM": (
        Forbidden,
        "the user has no right to this; it needs eval, get, set, del, pttl and publish on these keys",
    ),
    "WRONGTYPE": (Invalid, "the key holds something else than a record; choose another key or remove it"),
    "MOVED": (Refused, "the server is part of a cluster and another node holds the key; name that node in the URL"),
    "CROSSSLOT": (Refused, "the server is part of a cluster; use one without cluster mode"),
    "READONLY": (Unavailable, "the server is a read-only replica; name the primary, or wait until it is one"),
    "LOADING": (Unavailable, "the server is still loading its data; try later"),
    "OOM": (Unavailable, "the server is out of memory; free some"),
    "MISCONF": (Unavailable, "the server cannot save to its disk; an operator must look"),
    "BUSY": (Unavailable, "the server is busy with somebody's script; try later"),
    "NOREPLICAS": (Unavailable, "the server has too few replicas; try later"),
    "MASTERDOWN": (Unavailable, "the server has lost its primary; try later"),
    "CLUSTERDOWN": (Unavailable, "the cluster is down; try later"),
    "TRYAGAIN": (Unavailable, "the key is being moved; try later"),
    "ASK": (Unavailable, "the key is being moved; try later"),
}
"""What the server may say instead of doing it, by the first word. Nothing was written then."""


class RedisTtlStorage:
    """Connects when first used, and again after it lost the server."""

    def __init__(
        self,
        host: str,
        port: int = 6379,
        *,
        db: int = 0,
        user: str | None = None,
        password: str | None = None,
        tls: bool = False,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        timeout: float = 5.0,
    ) -> None:
        self._name = f"redis {host}:{port}"
        self._calls = Calls(self._name, timeout)
        self._db = db
        self._options: dict[str, Any] = {
            "host": host,
            "port": port,
            "db": db,
            "username": user,
            "password": password,
            "client_name": "hostler",
            "protocol": 2,
            "driver_info": None,
            "socket_keepalive": True,
            # The deadline of a call is the only one, and nothing is repeated: the client's defaults do otherwise.
            "socket_timeout": None,
            "socket_connect_timeout": timeout,
            "retry": Retry(NoBackoff(), 0),
        }
        self._kind: type[Connection] = Connection
        if tls:
            self._kind = SSLConnection
            self._options |= {"ssl_ca_certs": ca, "ssl_certfile": cert, "ssl_keyfile": key}
        self._turns = asyncio.Semaphore(CONNECTIONS)
        self._idle: list[Connection] = []
        self._listener = Listener(self._connected)

    async def __aenter__(self) -> Self:
        self._calls.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._calls.shut()
        await self._listener.aclose()
        while self._idle:
            await _dropped(self._idle.pop())

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
            return _text(key, await self._asked(call, "GET", key))

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

    # Inside

    def _channel(self, key: str) -> str:
        return f"hostler:ttl:{self._db}:{key}"

    async def _written(self, verb: str, script: str, key: str, *arguments: str | int) -> bool:
        async with self._calls.call(verb, key, writes=True) as call:
            answer: int = await self._asked(call, "EVAL", script, 1, key, self._channel(key), *arguments)
            return answer == 1

    async def _read(self, key: str) -> tuple[str | None, float]:
        """The record and how many seconds it has left."""
        async with self._calls.call("get", key, writes=False) as call:
            value, left = await self._asked(call, "EVAL", _READ, 1, key)
            return _text(key, value), (left + 1) / 1000 if left >= 0 else math.inf

    async def _asked(self, call: Call, *command: str | int) -> Any:
        """The server's answer. A connection that did not give one is not used again."""
        async with self._turns:
            while (connection := await self._idle_one()) is not None:
                try:
                    return await self._exchanged(call, connection, *command)
                except Unavailable as error:
                    if not isinstance(error.__cause__, RedisError | OSError) or _said(error.__cause__):
                        raise
                    # A read, over a connection that broke while nobody looked: ask again over another.
            return await self._exchanged(call, await self._new_one(call), *command)

    async def _exchanged(self, call: Call, connection: Connection, *command: str | int) -> Any:
        answered = False
        call.sent = True
        try:
            await connection.send_command(*command)
            answer = await connection.read_response()
            answered = True
        except (RedisError, OSError) as error:
            answered = _said(error)
            if answered:
                raise _refusal(call.subject, error) from error
            raise call.lost(f"the connection broke ({error})") from error
        finally:
            if answered and connection.is_connected:
                self._idle.append(connection)
            else:
                await _dropped(connection)
        return answer

    async def _idle_one(self) -> Connection | None:
        """A connection that the server has not closed meanwhile."""
        while self._idle:
            connection = self._idle.pop()
            with suppress(RedisError, OSError):
                if _stands(connection) and not await connection.can_read():
                    return connection
            await _dropped(connection)
        return None

    async def _new_one(self, call: Call) -> Connection:
        try:
            return await self._connected()
        except (RedisError, OSError) as error:
            if _said(error):
                raise _refusal(call.subject, error) from error
            raise Unavailable(f"{call.subject}: cannot connect ({error}); nothing was written, try later") from error

    async def _connected(self) -> Connection:
        connection = self._kind(**self._options)
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
        except BaseException:
            await _dropped(connection)
            raise
        return connection


def _life(ttl: float) -> tuple[str | int, ...]:
    """The options of SET. One millisecond more, for the server counts from the last full one: never early."""
    ttl = check_life(ttl)
    return ("PX", math.ceil(ttl * 1000) + 1) if ttl else ()


def _text(key: str, value: bytes | None) -> str | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Invalid(f"record {key!r}: what is there is no text, so it is no record; choose another key") from None


def _said(error: Exception) -> bool:
    """Whether the server said it, rather than the connection."""
    return isinstance(error, ResponseError) or getattr(error, "status_code", None) is not None


def _refusal(subject: str, error: Exception) -> HostlerError:
    """What the server said instead of doing it."""
    said = str(error)
    word = getattr(error, "status_code", None) or said.split(" ", 1)[0].rstrip(":")
    if word == "ERR" or word not in _ANSWERS:
        # Older servers put what a command said into what its script says.
        word = next((known for known in _ANSWERS if re.search(rf"\b{known}\b", said)), word)
    if isinstance(error, AuthenticationError) and word not in _ANSWERS:
        word = "WRONGPASS"
    kind, words = _ANSWERS.get(word, (Refused, "the server refused it"))
    if kind is Refused and isinstance(error, ConnectionError):
        kind, words = Unavailable, "the server takes no more connections; try later"
    return kind(f"{subject}: {words} ({said})")


def _stands(connection: Connection) -> bool:
    """Whether it was not reset meanwhile: the client itself finds that out only when it writes."""
    reader, writer = connection._reader, connection._writer
    return reader is not None and reader.exception() is None and writer is not None and not writer.is_closing()


async def _dropped(connection: Connection) -> None:
    with suppress(RedisError, OSError):
        await connection.disconnect(nowait=True)
