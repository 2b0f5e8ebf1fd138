"""What foreign errors mean: the tables of the ttl drivers, entry by entry."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import cassandra
import pytest
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    ReadTimeoutError,
)
from cassandra import OperationTimedOut, WriteTimeout, WriteType
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionShutdown
from cassandra.protocol import OverloadedErrorMessage, ServerError
from redis.exceptions import ResponseError

from hostler.drivers.deadline import Call, Calls
from hostler.drivers.redis_client import refusal
from hostler.drivers.ttl import cassandra as on_cassandra
from hostler.drivers.ttl import dynamodb as on_dynamodb
from hostler.drivers.ttl import redis as on_redis
from hostler.drivers.ttl.dynamodb import DynamodbTtlStorage
from hostler.errors import (
    Closed,
    Forbidden,
    HostlerError,
    Invalid,
    NotFound,
    Refused,
    TooLarge,
    Unavailable,
    Uncertain,
)


def call(*, writes: bool = True, sent: bool = True) -> Call:
    made = Call("storage: verb of 'key'", 0.0, writes=writes)
    made.sent = sent
    return made


# DynamoDB


def client_error(code: str, status: int = 400) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": "words"}, "ResponseMetadata": {"HTTPStatusCode": status}}, "PutItem"
    )


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("ResourceNotFoundException", 400, NotFound),
        ("com.amazonaws.dynamodb.v20120810#ResourceNotFoundException", 400, NotFound),
        ("ProvisionedThroughputExceededException", 400, Unavailable),
        ("ThrottlingException", 400, Unavailable),
        ("RequestLimitExceeded", 400, Unavailable),
        ("AccessDeniedException", 400, Forbidden),
        ("UnrecognizedClientException", 400, Forbidden),
        ("InvalidSignatureException", 400, Forbidden),
        ("ExpiredTokenException", 400, Forbidden),
        ("ValidationException", 400, Invalid),
        ("SomethingNew", 400, Refused),
        ("InternalServerError", 500, Uncertain),
        ("ServiceUnavailable", 503, Uncertain),
    ],
)
def test_what_dynamodb_answers(code: str, status: int, kind: type[HostlerError]) -> None:
    error = on_dynamodb._refusal(call(), client_error(code, status))
    assert type(error) is kind
    assert "words" in str(error)


def endpoint_error(cause: Exception) -> EndpointConnectionError:
    return EndpointConnectionError(endpoint_url="http://x", error=cause)


REFUSED = aiohttp.ClientConnectorError(None, ConnectionRefusedError(111, "refused"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (endpoint_error(REFUSED), Unavailable),
        (endpoint_error(aiohttp.ClientOSError(104, "reset")), Uncertain),
        (ConnectTimeoutError(endpoint_url="http://x"), Unavailable),
        (ReadTimeoutError(endpoint_url="http://x"), Uncertain),
        (ConnectionClosedError(endpoint_url="http://x"), Uncertain),
        (ConnectionResetError(104, "reset"), Uncertain),
    ],
)
def test_only_a_connection_that_was_never_made_proves_that_dynamodb_did_nothing(
    error: Exception, kind: type[HostlerError]
) -> None:
    assert type(on_dynamodb._lost_error(call(), error)) is kind
    assert type(on_dynamodb._lost_error(call(writes=False), error)) is Unavailable


class Wall:
    """A clock whose calendar is set by hand."""

    def __init__(self) -> None:
        self.at = 1_000_000.0

    def now(self) -> float:
        return 0.0

    def wall(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError


class Recorded(DynamodbTtlStorage):
    """Keeps what it would have asked."""

    def __init__(self, clock: Wall) -> None:
        super().__init__("table", clock=clock)
        self.asked: dict[str, Any] = {}
        self.answer: dict[str, Any] = {}

    async def _request(self, call: Call, operation: str, **parameters: Any) -> Any:  # noqa: ARG002
        self.asked = {"operation": operation, **parameters}
        return self.answer


async def test_every_condition_of_dynamodb_holds_the_time_and_the_sweep_comes_a_day_later() -> None:
    clock = Wall()
    async with Recorded(clock) as storage:
        await storage.insert_if_not_exist("key", "value", ttl=1.5)
        assert storage.asked["ConditionExpression"].endswith("(expires_ms <> :never AND expires_ms <= :now)")
        assert storage.asked["ExpressionAttributeValues"][":now"] == {"N": "1000000000"}
        assert storage.asked["Item"]["expires_ms"] == {"N": "1000001500"}
        assert storage.asked["Item"]["sweep_at"] == {"N": str(1_000_002 + 86_400)}
        await storage.compare_and_swap("key", "old", "new", ttl=0)
        assert storage.asked["ConditionExpression"] == "#value = :old AND (expires_ms = :never OR expires_ms > :now)"
        assert storage.asked["Item"] == {"key": {"S": "key"}, "value": {"S": "new"}, "expires_ms": {"N": "0"}}
        await storage.compare_and_delete("key", "old")
        assert storage.asked["ConditionExpression"] == "#value = :old AND (expires_ms = :never OR expires_ms > :now)"


async def test_a_read_of_dynamodb_asks_for_the_latest_and_looks_at_the_clock() -> None:
    clock = Wall()
    async with Recorded(clock) as storage:
        storage.answer = {"Item": {"key": {"S": "key"}, "value": {"S": "v"}, "expires_ms": {"N": "1000001000"}}}
        assert await storage.get("key") == "v"
        assert storage.asked["ConsistentRead"] is True
        clock.at += 0.999
        assert await storage.get("key") == "v"
        clock.at += 0.001
        assert await storage.get("key") is None
        clock.at -= 3600
        assert await storage.get("key") == "v"
        storage.answer = {"Item": {"key": {"S": "key"}, "other": {"S": "v"}}}
        with pytest.raises(Invalid, match="not a record"):
            await storage.get("key")
        with pytest.raises(TooLarge):
            await storage.get("k" * 2049)


# Cassandra


def write_timeout(kind: int) -> WriteTimeout:
    return WriteTimeout("timed out", write_type=kind)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NoHostAvailable("none", {}), Unavailable),
        (NoHostAvailable("none", {"h": ConnectionShutdown("gone")}), Unavailable),
        (NoHostAvailable("none", {"h": ConnectionRefusedError(111, "refused")}), Unavailable),
        (NoHostAvailable("none", {"h": ServerError(0, "boom", None)}), Uncertain),
        (NoHostAvailable("none", {"h": cassandra.AuthenticationFailed("bad")}), Forbidden),
        (cassandra.Unavailable("too few"), Unavailable),
        (write_timeout(WriteType.CAS), Uncertain),
        (write_timeout(WriteType.SIMPLE), Uncertain),
        (cassandra.ReadTimeout("timed out"), Uncertain),
        (OverloadedErrorMessage(0x1001, "busy", None), Uncertain),
        (ServerError(0, "boom", None), Uncertain),
        (OperationTimedOut(), Uncertain),
        (ConnectionShutdown("broke"), Uncertain),
        (cassandra.Unauthorized("no right"), Forbidden),
        (cassandra.InvalidRequest("Keyspace x does not exist"), NotFound),
        (cassandra.InvalidRequest("unconfigured columnfamily hostler_ttl"), NotFound),
        (cassandra.InvalidRequest("bad"), Refused),
    ],
)
def test_what_cassandra_and_its_client_say(error: Exception, kind: type[HostlerError]) -> None:
    assert isinstance(error, on_cassandra._FOREIGN)
    assert type(on_cassandra._translate_error(call(), error)) is kind


def test_a_life_on_cassandra_is_rounded_up_to_whole_seconds_and_one_more() -> None:
    assert [on_cassandra._life(ttl) for ttl in (0, 0.1, 1, 1.5, 20)] == [0, 2, 2, 3, 21]
    with pytest.raises(Invalid, match="at most"):
        on_cassandra._life(on_cassandra.MAX_TTL)


# Redis


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("MOVED 866 10.0.0.1:6379", Refused),
        ("TRYAGAIN Multiple keys request during rehashing of slot", Unavailable),
        ("MISCONF Redis is configured to save RDB snapshots, but cannot persist", Unavailable),
        ("BUSY Redis is busy running a script", Unavailable),
        ("NOREPLICAS Not enough good replicas to write.", Unavailable),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", Invalid),
        # As Redis 6.2 says it from inside a script.
        ("ERR Error running script (call to f_1): @user_script:2: WRONGTYPE Operation against a key", Invalid),
        ("ERR Error running script (call to f_1): @user_script: 2: -OOM command not allowed", Unavailable),
        ("ERR Error running script: -READONLY You can't write against a read only replica.", Unavailable),
        ("ERR unknown command 'EVAL'", Refused),
    ],
)
def test_what_redis_answers(said: str, kind: type[HostlerError]) -> None:
    error = refusal("redis: verb of 'key'", ResponseError(said))
    assert type(error) is kind
    assert str(error).startswith("redis: verb of 'key': ")


def test_a_life_on_redis_is_in_milliseconds_and_never_short() -> None:
    assert on_redis._life(0) == ()
    assert on_redis._life(0.0001) == ("PX", 2)
    assert on_redis._life(20) == ("PX", 20_001)


# Calls


async def test_a_call_ends_at_its_deadline_as_uncertain_only_if_a_write_was_sent() -> None:
    calls = Calls("storage", 0.05)
    calls.open()

    async def run(*, writes: bool, sent: bool) -> None:
        async with calls.call("verb", "key", writes=writes) as made:
            made.sent = sent
            await asyncio.sleep(3600)

    for writes, sent, kind in ((True, True, Uncertain), (True, False, Unavailable), (False, True, Unavailable)):
        with pytest.raises(kind, match="no answer within 0.05 s"):
            await run(writes=writes, sent=sent)


async def test_closing_ends_calls_and_a_write_that_was_sent_is_uncertain() -> None:
    calls = Calls("storage", 3600)
    calls.open()

    async def run(*, writes: bool, sent: bool) -> None:
        async with calls.call("verb", "key", writes=writes) as made:
            made.sent = sent
            await asyncio.sleep(3600)

    kinds = [(True, True, Uncertain), (True, False, Closed), (False, True, Closed)]
    tasks = [asyncio.create_task(run(writes=writes, sent=sent)) for writes, sent, _ in kinds]
    await asyncio.sleep(0.01)
    await asyncio.wait_for(calls.shut(), 30)
    await calls.shut()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [kind for _, _, kind in kinds]
    with pytest.raises(Closed):
        calls.open()


async def test_a_caller_who_gives_up_is_not_told_of_a_deadline() -> None:
    calls = Calls("storage", 3600)
    calls.open()

    async def run() -> None:
        async with calls.call("verb", "key", writes=True):
            await asyncio.sleep(3600)

    task = asyncio.create_task(run())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await calls.shut()
