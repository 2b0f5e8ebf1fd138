"""Records in Cassandra or Scylla: one lightweight transaction per verb, reads at SERIAL.

The table has a text key and one text column. A row has its own TTL in addition to that of its value, set by INSERT
only, and it exists for as long as the longer of the two. So a swap renews both in one batch: with an UPDATE alone, a
swap to a shorter ttl would leave a row without a value that blocks every insert.

TTLs are whole seconds, counted from the last full second of the server's clock: a ttl is rounded up and one second is
added, so a record is never gone early, and less than two seconds late. The clocks are the servers': they must agree.

The client's own reactors share one thread among all clients of the process, and that thread never ends. So each
client has its own, a `Reactor`, which ends with it. Answers are passed to the event loop. The client retries nothing.
"""

from __future__ import annotations

import asyncio
import math
import threading
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, ClassVar, Self

import msgspec
from cassandra import (
    AuthenticationFailed,
    ConsistencyLevel,
    InvalidRequest,
    OperationTimedOut,
    RequestExecutionException,
    Unauthorized,
    UnresolvableContactPoints,
)
from cassandra import Unavailable as TooFewReplicas
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
from cassandra.connection import Connection, ConnectionException, ConnectionShutdown
from cassandra.policies import (
    DCAwareRoundRobinPolicy,
    ExponentialReconnectionPolicy,
    FallthroughRetryPolicy,
    NoSpeculativeExecutionPolicy,
    RoundRobinPolicy,
)
from cassandra.protocol import ErrorMessage, IsBootstrappingErrorMessage
from cassandra.query import SimpleStatement

from hostler.drivers.deadline import Calls
from hostler.errors import Forbidden, HostlerError, Invalid, NotFound, Refused, Unavailable
from hostler.kit.tasks import Closing
from hostler.ports.store import check_key
from hostler.ports.ttl import check_life, check_record, check_swap

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostler.drivers.deadline import Call


class Reactor:
    """An event loop in a thread, and the connections on it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cassandra: reactor", daemon=True)
        self._thread.start()
        self.connection_class: type[ReactorConnection] = type(
            "BoundConnection", (ReactorConnection,), {"loop": self._loop}
        )

    def close(self) -> None:
        """End the thread, once every connection is closed."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(asyncio.sleep(0))  # run the last callbacks of aborted connections
        self._loop.close()


class Timer:
    """Calls back once, unless it is cancelled before. Created and cancelled in any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, after: float, callback: Callable[[], None]) -> None:
        self._loop, self._callback = loop, callback
        self._handle: asyncio.TimerHandle | None = None
        self._cancelled = False
        with suppress(RuntimeError):  # the loop is closed, and the timed operation has ended
            loop.call_soon_threadsafe(self._start, after)

    def _start(self, after: float) -> None:
        if not self._cancelled:
            self._handle = self._loop.call_later(after, self._callback)

    def cancel(self) -> None:
        self._cancelled = True
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()


class ReactorConnection(Connection):  # type: ignore[misc]  # the client has no types
    """The connection class for the client: created in one of its threads, which may block; used from any."""

    loop: ClassVar[asyncio.AbstractEventLoop]
    is_closed: bool

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._connect_socket()
        self._socket.setblocking(False)
        attached = asyncio.run_coroutine_threadsafe(
            self.loop.create_connection(lambda: _Wire(self), sock=self._socket), self.loop
        )
        self._transport, _ = attached.result()
        self._send_options_message()

    @classmethod
    def create_timer(cls, timeout: float, callback: Callable[[], None]) -> Timer:
        return Timer(cls.loop, timeout, callback)

    def push(self, data: bytes) -> None:
        try:
            self.loop.call_soon_threadsafe(self._transport.write, data)
        except RuntimeError:
            raise ConnectionShutdown("the client is closed") from None

    def close(self) -> None:
        with self.lock:
            if self.is_closed:
                return
            self.is_closed = True
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._transport.abort)
        if not self.is_defunct:
            self.error_all_requests(ConnectionShutdown(f"connection to {self.endpoint} was closed"))
            self.connected_event.set()


class _Wire(asyncio.Protocol):
    """Passes data from the socket to the client's buffer."""

    def __init__(self, connection: ReactorConnection) -> None:
        self._connection = connection

    def data_received(self, data: bytes) -> None:
        self._connection._iobuf.write(data)
        self._connection.process_io_buffer()

    def connection_lost(self, error: Exception | None) -> None:
        self._connection.defunct(error or ConnectionShutdown(f"{self._connection.endpoint} closed the connection"))


MAX_TTL = 630_720_000
"""Twenty years, the servers' own limit."""
TABLE = "hostler_ttl"
REPLICAS = 3
"""Replication factor of a keyspace that the driver creates, if there are that many servers."""

_STATEMENTS = {
    "insert": "INSERT INTO {table} (key, value) VALUES (%s, %s) IF NOT EXISTS USING TTL %s",
    "swap": (
        "BEGIN BATCH UPDATE {table} USING TTL %s SET value = %s WHERE key = %s IF value = %s; "
        "INSERT INTO {table} (key) VALUES (%s) USING TTL %s; APPLY BATCH"
    ),
    "delete": "DELETE FROM {table} WHERE key = %s IF value = %s",
    "get": "SELECT value FROM {table} WHERE key = %s",
}
"""Not prepared: that would save some parsing, but cost a round trip whenever a server lost the statement."""


class CassandraServers(msgspec.Struct, frozen=True):
    """The servers of a cluster, and the user there. `datacenter`: use only the servers there."""

    hosts: tuple[str, ...]
    port: int = 9042
    user: str | None = None
    password: str | None = None
    datacenter: str | None = None


class CassandraTable(msgspec.Struct, frozen=True):
    """The table of the records. `create`: create keyspace and table if they do not exist, with so many replicas."""

    keyspace: str
    name: str = TABLE
    create: bool = False
    replicas: int | None = None


class CassandraTtlStorage(Closing):
    """Connects on first use, and reconnects after it lost the servers."""

    def __init__(self, servers: CassandraServers, table: CassandraTable, *, timeout: float = 5.0) -> None:
        self._keyspace, self._create, self._replicas = table.keyspace, table.create, table.replicas
        self._table = f'"{table.keyspace}"."{table.name}"'
        self._timeout = timeout
        self._name = f"cassandra {','.join(servers.hosts)}:{servers.port}/{table.keyspace}"
        self._calls = Calls(self._name, timeout)
        policy = DCAwareRoundRobinPolicy(local_dc=servers.datacenter) if servers.datacenter else RoundRobinPolicy()
        profile = ExecutionProfile(
            load_balancing_policy=policy,
            retry_policy=FallthroughRetryPolicy(),
            request_timeout=timeout,
            speculative_execution_policy=NoSpeculativeExecutionPolicy(),
        )
        self._options: dict[str, Any] = {
            "contact_points": list(servers.hosts),
            "port": servers.port,
            "auth_provider": PlainTextAuthProvider(servers.user, servers.password or "") if servers.user else None,
            "execution_profiles": {EXEC_PROFILE_DEFAULT: profile},
            "reconnection_policy": ExponentialReconnectionPolicy(0.1, 2.0),
            # Every server from Cassandra 2.1 on supports it; older ones do not answer a request of a newer version.
            "protocol_version": 3,
            "connect_timeout": timeout,
            "control_connection_timeout": timeout,
            "schema_metadata_enabled": False,
            "token_metadata_enabled": False,
            "executor_threads": 2,
        }
        self._connecting: asyncio.Task[None] | None = None
        self._stop: ExitStack | None = None
        self._session: Any = None
        self._statements = {
            verb: SimpleStatement(
                statement.format(table=self._table),
                consistency_level=ConsistencyLevel.SERIAL if verb == "get" else ConsistencyLevel.QUORUM,
                serial_consistency_level=ConsistencyLevel.SERIAL,
            )
            for verb, statement in _STATEMENTS.items()
        }

    async def __aenter__(self) -> Self:
        self._calls.open()
        return self

    async def aclose(self) -> None:
        await self._calls.shut()
        if self._connecting is not None:
            await asyncio.wait([self._connecting])  # a thread cannot be cancelled; it ends at its own deadline
            self._connecting = None
        stop, self._stop, self._session = self._stop, None, None
        if stop is not None:
            await asyncio.to_thread(stop.close)

    def lateness(self, ttl: float) -> float:
        return math.ceil(ttl) + 1 - ttl + 0.25

    # The verbs

    async def insert_if_not_exist(self, key: str, value: str, *, ttl: float) -> bool:
        check_record(key, value)
        return await self._applied("insert", key, [key, value, _life(ttl)])

    async def compare_and_swap(self, key: str, old: str, new: str, *, ttl: float) -> bool:
        check_swap(key, old, new)
        life = _life(ttl)
        return await self._applied("swap", key, [life, new, key, old, key, life])

    async def compare_and_delete(self, key: str, old: str) -> bool:
        check_record(key, old)
        return await self._applied("delete", key, [key, old])

    async def get(self, key: str) -> str | None:
        check_key(key)
        async with self._calls.call("get", key, writes=False) as call:
            rows = await self._execute(call, "get", [key])
            return rows[0].value if rows else None

    # Internal

    async def _applied(self, verb: str, key: str, values: Sequence[str | int]) -> bool:
        async with self._calls.call(verb, key, writes=True) as call:
            (row,) = await self._execute(call, verb, values)
            return bool(row[0])

    async def _execute(self, call: Call, verb: str, values: Sequence[str | int]) -> Any:
        await self._connect(call)
        call.sent = True
        try:
            future = self._session.execute_async(self._statements[verb], values, timeout=call.remaining())
            return await _answer(future)
        except _FOREIGN as error:
            raise _translate_error(call, error) from error

    async def _connect(self, call: Call) -> None:
        """Connect, or wait for the attempt in progress."""
        if self._session is not None:
            return
        if self._connecting is None:
            self._connecting = asyncio.create_task(
                asyncio.to_thread(self._connect_client), name=f"{self._name}: connecting"
            )
        attempt = self._connecting
        try:
            await asyncio.shield(attempt)
        except _FOREIGN as error:
            raise _translate_error(call, error) from error
        finally:
            if attempt.done() and self._connecting is attempt:
                self._connecting = None

    def _connect_client(self) -> None:
        """Connect in a thread, and create keyspace and table if requested."""
        with ExitStack() as stack:
            reactor = Reactor()
            stack.callback(reactor.close)
            cluster = Cluster(**self._options, connection_class=reactor.connection_class)
            stack.callback(cluster.shutdown)
            session = cluster.connect()
            # The servers decide by a request's timestamp whether a record is live: use their time, not this host's.
            session.use_client_timestamp = False
            if self._create:
                self._create_table(cluster, session)
            self._session, self._stop = session, stack.pop_all()

    def _create_table(self, cluster: Any, session: Any) -> None:
        """Create keyspace and table if missing. If several clients do so at once, the servers may fail some of them."""
        replicas = self._replicas or min(REPLICAS, len(cluster.metadata.all_hosts()))
        if self._has_table(session):
            return
        try:
            session.execute(
                f'CREATE KEYSPACE IF NOT EXISTS "{self._keyspace}" WITH replication = '
                f"{{'class': 'SimpleStrategy', 'replication_factor': {replicas}}}"
            )
            session.execute(f"CREATE TABLE IF NOT EXISTS {self._table} (key text PRIMARY KEY, value text)")
        except ErrorMessage:
            if not self._has_table(session):
                raise

    def _has_table(self, session: Any) -> bool:
        try:
            session.execute(f"SELECT key FROM {self._table} LIMIT 1")  # noqa: S608 - both names were checked
        except InvalidRequest:
            return False
        return True


_FOREIGN = (
    NoHostAvailable,
    UnresolvableContactPoints,
    RequestExecutionException,
    OperationTimedOut,
    InvalidRequest,
    Unauthorized,
    AuthenticationFailed,
    ConnectionException,
    ErrorMessage,
    OSError,
)
_ANSWERED = (RequestExecutionException, OperationTimedOut, ErrorMessage)
"""Errors of a server that had received the request."""


async def _answer(future: Any) -> Any:
    """Return the rows, passed over from the client's thread."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Future[Any] = loop.create_future()

    def deliver(settle: Any, outcome: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: no caller waits any more
            loop.call_soon_threadsafe(lambda: None if arrived.done() else settle(outcome))

    future.add_callbacks(
        callback=lambda rows: deliver(arrived.set_result, rows),
        errback=lambda error: deliver(arrived.set_exception, error),
    )
    return await arrived


def _life(ttl: float) -> int:
    ttl = check_life(ttl)
    if ttl > MAX_TTL - 1:
        raise Invalid(f"ttl {ttl!r}: Cassandra takes at most {MAX_TTL - 1} seconds; 0 never expires")
    return math.ceil(ttl) + 1 if ttl else 0


def _translate_error(call: Call, error: Exception) -> HostlerError:
    """Translate the client's exceptions."""
    said = str(error)
    if isinstance(error, NoHostAvailable):
        reasons = list(error.errors.values()) if isinstance(error.errors, dict) else []
        if any(isinstance(reason, AuthenticationFailed) for reason in reasons):
            return Forbidden(f"{call.subject}: wrong user or password; correct them in the URL ({reasons[0]})")
        if any(isinstance(reason, _ANSWERED) for reason in reasons):
            return call.failure(f"no clear answer ({said})")
        return Unavailable(f"{call.subject}: no server can be reached ({said}); nothing was written, try later")
    if isinstance(error, AuthenticationFailed | Unauthorized):
        return Forbidden(f"{call.subject}: the servers do not allow it ({said})")
    if isinstance(error, InvalidRequest):
        if "does not exist" in said or "unconfigured" in said:
            return NotFound(
                f"{call.subject}: keyspace or table is missing; create them, or add create=true to the URL ({said})"
            )
        return Refused(f"{call.subject}: the servers refused it ({said})")
    if isinstance(error, UnresolvableContactPoints):
        return Unavailable(f"{call.subject}: no such host ({said}); nothing was written, try later")
    if isinstance(error, TooFewReplicas | IsBootstrappingErrorMessage):
        return Unavailable(f"{call.subject}: too few servers are up ({said}); nothing was written, try later")
    # A timeout or a failure of a lightweight transaction, or a broken connection: another may complete it.
    return call.failure(f"no clear answer ({said})")
