"""Connections to a Redis server: one command at a time on each, no blind retries, and the translation of its errors.

A write without an answer is Uncertain, and may even be executed later: the server reads what a broken connection has
left in its buffers. A link that is `fenced` closes that connection at the server before it sends anything else, so that
a read after an Uncertain is final.
"""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

import msgspec
from redis.asyncio import Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    ConnectionError,  # noqa: A004
    InvalidResponse,
    RedisError,
    ResponseError,
)

from hostler.drivers.deadline import Calls
from hostler.errors import Forbidden, HostlerError, Invalid, Refused, Unavailable
from hostler.ports.url import DEFAULT_TIMEOUT, ESCAPE, address, password_of, user_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from urllib.parse import SplitResult

    from hostler.drivers.deadline import Call
    from hostler.ports.url import Options

CONNECTIONS = 16
"""Maximum number of connections; further calls wait."""

Answers: TypeAlias = "Mapping[str, tuple[type[HostlerError], str]]"
Words: TypeAlias = "str | bytes | int | float"

ANSWERS: Answers = {
    "NOAUTH": (Forbidden, "the server requires a password; add it to the URL"),
    "WRONGPASS": (Forbidden, "wrong user or password; correct them in the URL"),
    "NOPERM": (Forbidden, "the user has no permission for this; allow the required commands and keys"),
    "WRONGTYPE": (Invalid, "the key holds a value of another type; remove it"),
    "MOVED": (Refused, "the server is part of a cluster and another node holds the key; name that node in the URL"),
    "CROSSSLOT": (Refused, "the server is part of a cluster; use one without cluster mode"),
    "READONLY": (Unavailable, "the server is a read-only replica; name the primary, or wait until it is one"),
    "LOADING": (Unavailable, "the server is still loading its data; try later"),
    "OOM": (Unavailable, "the server is out of memory; free some"),
    "MISCONF": (Unavailable, "the server cannot save to its disk; an operator must check it"),
    "BUSY": (Unavailable, "the server is busy with a script; try later"),
    "NOREPLICAS": (Unavailable, "the server has too few replicas; try later"),
    "MASTERDOWN": (Unavailable, "the server has lost its primary; try later"),
    "UNBLOCKED": (Unavailable, "the server stopped waiting because its role changed; try later"),
    "CLUSTERDOWN": (Unavailable, "the cluster is down; try later"),
    "TRYAGAIN": (Unavailable, "the key is being moved; try later"),
    "ASK": (Unavailable, "the key is being moved; try later"),
}
"""Errors of the server by their first word. Nothing was written in any of these cases."""


def _reason(error: Exception) -> str:
    """Return why there is no connection, without the address, which the message already has."""
    found = re.fullmatch(r"Error (-?\d+) connecting to \S+ (.*?)\.?", str(error))
    if found is None:
        return str(error)
    number, text = int(found[1]), found[2]
    if "SSL" in text:  # its error numbers are not those of the system
        return text
    return (os.strerror(number) if number > 0 else text).lower()


class RedisTls(msgspec.Struct, frozen=True):
    """Files for a connection with TLS: certificate authorities, own certificate and its key."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None


class RedisAddress(msgspec.Struct, frozen=True):
    """A Redis server, a database of it, and the user there. Without `tls` the connection is not encrypted."""

    host: str
    port: int = 6379
    db: int = 0
    user: str | None = None
    password: str | None = None
    tls: RedisTls | None = None


class RedisLink:
    """Connects on first use, and reconnects after it lost the server."""

    def __init__(
        self,
        address: RedisAddress,
        *,
        timeout: float = 5.0,
        opener: str = "open_ttl_storage",
        fenced: bool = False,
    ) -> None:
        self.name, self.db, self.timeout = f"redis {address.host}:{address.port}", address.db, timeout
        self.calls = Calls(self.name, timeout, opener=opener)
        self.answers: Answers = ANSWERS
        self._options: dict[str, Any] = {
            "host": address.host,
            "port": address.port,
            "db": address.db,
            "username": address.user,
            "password": address.password,
            "client_name": "hostler",
            "protocol": 2,
            "driver_info": None,
            "socket_keepalive": True,
            # The deadline of a call is the only timeout, and nothing is retried: the client's defaults differ.
            "socket_timeout": None,
            "socket_connect_timeout": timeout,
            "retry": Retry(NoBackoff(), 0),
        }
        self._kind: type[Connection] = Connection
        if address.tls is not None:
            self._kind = SSLConnection
            files = address.tls
            self._options |= {"ssl_ca_certs": files.ca, "ssl_certfile": files.cert, "ssl_keyfile": files.key}
        self._fenced = fenced
        self._turns = asyncio.Semaphore(CONNECTIONS)
        self._idle: list[Connection] = []
        self._known: dict[Connection, tuple[bytes, int]] = {}
        """Of each connection: the run id of the server, and the connection's id there."""
        self._unanswered: list[tuple[bytes, int]] = []
        """Connections over which a command was sent that the server may still execute."""
        self._settling = asyncio.Lock()

    async def aclose(self) -> None:
        """End every call and connection. Closing twice is fine."""
        await self.calls.shut()
        while self._idle:
            await self.drop(self._idle.pop())

    async def ask(self, call: Call, *command: Words) -> Any:
        """Return the server's answer. A connection without an answer is not used again."""
        async with self._turns:
            while (connection := await self._idle_one()) is not None:
                try:
                    return await self._exchange(call, connection, *command)
                except Unavailable as error:
                    if not isinstance(error.__cause__, RedisError | OSError) or said(error.__cause__):
                        raise
                    # A read over an idle connection that had broken: repeat it over another one.
            return await self._exchange(call, await self._new_one(call), *command)

    async def connect(self) -> Connection:
        """Return a connection that the caller owns and ends with `drop`. Raises what the client raises."""
        connection = self._kind(**self._options)
        try:
            await connection.connect()  # type: ignore[no-untyped-call]
        except BaseException:
            await self.drop(connection)
            raise
        return connection

    async def drop(self, connection: Connection) -> None:
        """Close a connection in any state."""
        self._known.pop(connection, None)
        with suppress(RedisError, OSError):
            await connection.disconnect(nowait=True)

    def trouble(self, subject: str, error: Exception) -> HostlerError:
        """Return the error for a command that could not be sent."""
        if said(error):
            return refusal(subject, error, self.answers)
        if isinstance(error, InvalidResponse):
            return Refused(f"{subject}: the peer is not a Redis server ({error}); correct the URL")
        return Unavailable(f"{subject}: cannot connect ({_reason(error)}); nothing was written, try later")

    # Internal

    async def _exchange(self, call: Call, connection: Connection, *command: Words) -> Any:
        answered = False
        try:
            await self._settle(connection)
            call.sent = True
            await connection.send_command(*command)
            answer = await connection.read_response()
            answered = True
        except (RedisError, OSError) as error:
            answered = said(error)
            if answered:
                raise refusal(call.subject, error, self.answers) from error
            raise call.failure(f"the connection broke ({error})") from error
        finally:
            if answered and connection.is_connected:
                self._idle.append(connection)
            else:
                if call.sent and call.writes and not answered and connection in self._known:
                    self._unanswered.append(self._known[connection])
                await self.drop(connection)
        return answer

    async def _settle(self, connection: Connection) -> None:
        """Ensure that the server executes nothing that was sent before."""
        if not self._unanswered:
            return
        async with self._settling:
            while self._unanswered:
                run, number = self._unanswered[0]
                # Another run of the server, or another server, has not read that connection's data.
                if self._known.get(connection, (b"", 0))[0] == run:
                    await self._ask_optional(connection, "CLIENT", "KILL", "ID", number)
                self._unanswered.pop(0)

    async def _ask_optional(self, connection: Connection, *command: Words) -> Any:
        """Return an optional answer: the user may have no permission for the command."""
        await connection.send_command(*command)
        try:
            return await connection.read_response()
        except ResponseError:
            return None

    async def _idle_one(self) -> Connection | None:
        """Return an idle connection that the server has not closed."""
        while self._idle:
            connection = self._idle.pop()
            with suppress(RedisError, OSError):
                if _stands(connection) and not await connection.can_read():
                    return connection
            await self.drop(connection)
        return None

    async def _new_one(self, call: Call) -> Connection:
        try:
            connection = await self.connect()
        except (RedisError, OSError) as error:
            raise self.trouble(call.subject, error) from error
        if self._fenced:
            await self._know(call, connection)
        return connection

    async def _know(self, call: Call, connection: Connection) -> None:
        try:
            number = await self._ask_optional(connection, "CLIENT", "ID")
            info = await self._ask_optional(connection, "INFO", "server")
        except (RedisError, OSError) as error:
            await self.drop(connection)
            raise self.trouble(call.subject, error) from error
        except BaseException:
            await self.drop(connection)
            raise
        run = re.search(rb"run_id:(\w+)", info or b"")
        if run and number:
            self._known[connection] = (run[1], number)


def said(error: Exception) -> bool:
    """Return whether the error came from the server, and not from the connection."""
    return isinstance(error, ResponseError) or getattr(error, "status_code", None) is not None


def refusal(subject: str, error: Exception, answers: Answers = ANSWERS) -> HostlerError:
    """Return the error for an error reply of the server."""
    text = str(error)
    word = getattr(error, "status_code", None) or text.split(" ", 1)[0].rstrip(":")
    if word == "ERR" or word not in answers:
        # Older servers embed the error of a command in the error of its script.
        word = next((known for known in answers if re.search(rf"\b{known}\b", text)), word)
    if isinstance(error, AuthenticationError) and word not in answers:
        word = "WRONGPASS"
    kind, words = answers.get(word, (Refused, "the server refused it"))
    if kind is Refused and isinstance(error, ConnectionError):
        kind, words = Unavailable, "the server takes no more connections; try later"
    return kind(f"{subject}: {words} ({text})")


def _stands(connection: Connection) -> bool:
    """Return whether it was not reset: the client itself notices only when it writes."""
    reader, writer = connection._reader, connection._writer
    return reader is not None and reader.exception() is None and writer is not None and not writer.is_closing()


MAX_DIGITS = 9
"""Maximum length of a database number."""


def redis_link(url: SplitResult, options: Options, what: str, *, opener: str, fenced: bool = False) -> RedisLink:
    """Return connections to the server at `redis://user:password@host:port/db?timeout=…` or `rediss://…?ca=…`."""

    host, port = address(url, 6379, what)
    db = unquote(url.path).strip("/") or "0"
    if not db.isdecimal() or len(db) > MAX_DIGITS:
        raise Invalid(f"{what} {url.scheme}://…: needs a database number after host:port, as in …/0; {ESCAPE}")
    tls = url.scheme == "rediss"
    server = RedisAddress(
        host,
        port,
        db=int(db),
        user=user_of(url, options),
        password=password_of(url, options),
        tls=RedisTls(options.text("ca"), options.text("cert"), options.text("key")) if tls else None,
    )
    timeout = options.number("timeout", DEFAULT_TIMEOUT, least=0.01)
    return RedisLink(server, timeout=timeout, opener=opener, fenced=fenced)
