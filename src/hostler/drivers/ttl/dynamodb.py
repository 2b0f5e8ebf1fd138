"""Records in a DynamoDB table: one conditional write per verb, and the expiry is part of every condition.

The table has a string hash key named `key`; an item holds `value` and `expires_ms`, the end of its life in milliseconds
since 1970 (0: never). `sweep_at` is for the table's own time to live, which removes items that expired long ago; the
driver does not depend on it.

Conditions have no access to a server clock, so they contain this client's wall clock at the start of the call. Clients
whose clocks differ by a second see lives differ by a second, and a clock that jumps can end a record's life early or
late. A record is never taken twice: every write also compares what it replaces. A renewal carries the end of life that
was computed at its start, so one that arrives late must not move the end back: it is written only if it extends the
life.
"""

from __future__ import annotations

import asyncio
import math
import threading
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Self

import aiohttp
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
    ProxyConnectionError,
    SSLError,
)

from hostler.drivers.deadline import Calls
from hostler.errors import Forbidden, HostlerError, Invalid, NotFound, Refused, TooLarge, Unavailable
from hostler.kit.clock import SystemClock
from hostler.kit.tasks import Closing
from hostler.ports.store import check_key
from hostler.ports.ttl import check_life, check_record, check_swap

if TYPE_CHECKING:
    from hostler.drivers.deadline import Call
    from hostler.kit.clock import Clock

CONNECTIONS = 16
MAX_KEY_BYTES = 2048
"""Maximum size of a hash key."""
SWEEP_AFTER = 86_400
"""Seconds between the end of a record and its removal by the table: no client's clock is that far behind."""

_ALIVE = "(expires_ms = :never OR expires_ms > :now)"
_FREE = "attribute_not_exists(#key) OR (expires_ms <> :never AND expires_ms <= :now)"
_NO_LONGER = "(expires_ms = :never OR expires_ms <= :expires)"
_NAMES = {"#key": "key", "#value": "value"}
_NEVER = {"N": "0"}

_CONDITION_FAILED = "ConditionalCheckFailedException"
_ANSWERS: dict[str, tuple[type[HostlerError], str]] = {
    "ResourceNotFoundException": (NotFound, "the table does not exist; create it, or add create=true to the URL"),
    "ProvisionedThroughputExceededException": (Unavailable, "the table's throughput is used up; try later"),
    "ThrottlingException": (Unavailable, "too many requests; try later"),
    "RequestLimitExceeded": (Unavailable, "too many requests; try later"),
    "LimitExceededException": (Unavailable, "too much at once; try later"),
    "TransactionConflictException": (Unavailable, "a transaction holds the record; try later"),
    "ResourceInUseException": (Unavailable, "the table is being changed; try later"),
    "AccessDeniedException": (Forbidden, "these credentials have no permission for it"),
    "UnrecognizedClientException": (Forbidden, "these credentials are not known; correct them"),
    "InvalidSignatureException": (Forbidden, "wrong secret key, or this machine's clock is wrong"),
    "MissingAuthenticationTokenException": (Forbidden, "credentials are missing"),
    "IncompleteSignatureException": (Forbidden, "the credentials are incomplete"),
    "ExpiredTokenException": (Forbidden, "the session token has expired; get a new one"),
    "ItemCollectionSizeLimitExceededException": (TooLarge, "over the table's limit"),
    "ValidationException": (Invalid, "the table or the record has the wrong form"),
}
"""Errors of DynamoDB by their code. Nothing was written in any of these cases."""


class DynamodbTtlStorage(Closing):
    """Connects on first use. Credentials come from where the AWS tools look for them.

    `create`: create the table, with on-demand billing, if it does not exist.
    """

    def __init__(
        self,
        table: str,
        *,
        endpoint: str | None = None,
        region: str | None = None,
        create: bool = False,
        timeout: float = 5.0,
        clock: Clock | None = None,
    ) -> None:
        self._table, self._create = table, create
        self._options: dict[str, Any] = {"endpoint_url": endpoint, "region_name": region}
        self._timeout = timeout
        self._clock: Clock = clock or SystemClock()
        self._name = f"dynamodb {table}"
        self._calls = Calls(self._name, timeout)
        self._opened = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._turns = asyncio.Semaphore(CONNECTIONS)
        self._client: Any = None

    async def __aenter__(self) -> Self:
        self._calls.open()
        return self

    async def aclose(self) -> None:
        await self._calls.shut()
        self._client = None
        await self._opened.aclose()

    def lateness(self, ttl: float) -> float:  # noqa: ARG002 - the same for every ttl
        return 0.25

    # The verbs

    async def insert_if_not_exist(self, key: str, value: str, *, ttl: float) -> bool:
        check_record(key, value)
        life = check_life(ttl)
        return await self._written("insert", "put_item", key, Item=self._item(key, value, life), condition=_FREE)

    async def compare_and_swap(self, key: str, old: str, new: str, *, ttl: float) -> bool:
        check_swap(key, old, new)
        item = self._item(key, new, check_life(ttl))
        condition = f"#value = :old AND {_ALIVE}"
        if old != new or item["expires_ms"] == _NEVER:
            return await self._written("swap", "put_item", key, Item=item, condition=condition, old=old)
        condition += f" AND {_NO_LONGER}"
        if await self._written("swap", "put_item", key, Item=item, condition=condition, old=old):
            return True
        # this clock may have gone back: then the record is as requested, and lives longer
        found = await self._live_record(key)
        return found is not None and found[0] == old and found[1] >= int(item["expires_ms"]["N"])

    async def compare_and_delete(self, key: str, old: str) -> bool:
        check_record(key, old)
        where = {"key": {"S": key}}
        return await self._written(
            "delete", "delete_item", key, Key=where, condition=f"#value = :old AND {_ALIVE}", old=old
        )

    async def get(self, key: str) -> str | None:
        found = await self._live_record(key)
        return None if found is None else found[0]

    # Internal

    async def _live_record(self, key: str) -> tuple[str, int] | None:
        """Return the live record and the end of its life."""
        _check_key(key)
        async with self._calls.call("get", key, writes=False) as call:
            answer = await self._request(call, "get_item", Key={"key": {"S": key}}, ConsistentRead=True)
        item = answer.get("Item")
        if item is None:
            return None
        try:
            value, expires_ms = str(item["value"]["S"]), int(item["expires_ms"]["N"])
        except (KeyError, ValueError):
            raise Invalid(f"record {key!r}: the item in {self._table} is not a record; choose another key") from None
        return (value, expires_ms) if not expires_ms or expires_ms > self._now_ms() else None

    def _now_ms(self) -> int:
        return math.floor(self._clock.wall() * 1000)

    def _item(self, key: str, value: str, life: float) -> dict[str, dict[str, str]]:
        _check_key(key)
        item = {"key": {"S": key}, "value": {"S": value}, "expires_ms": _NEVER}
        if life:
            expires_ms = math.ceil((self._clock.wall() + life) * 1000)
            item |= {
                "expires_ms": {"N": str(expires_ms)},
                "sweep_at": {"N": str(math.ceil(expires_ms / 1000) + SWEEP_AFTER)},
            }
        return item

    async def _written(
        self, verb: str, operation: str, key: str, *, condition: str, old: str | None = None, **parameters: Any
    ) -> bool:
        _check_key(key)
        values: dict[str, dict[str, str]] = {":never": _NEVER, ":now": {"N": str(self._now_ms())}}
        if old is not None:
            values[":old"] = {"S": old}
        if _NO_LONGER in condition:
            values[":expires"] = parameters["Item"]["expires_ms"]
        used = {name: word for name, word in _NAMES.items() if name in condition}
        async with self._calls.call(verb, key, writes=True) as call:
            answer = await self._request(
                call,
                operation,
                ConditionExpression=condition,
                ExpressionAttributeNames=used,
                ExpressionAttributeValues=values,
                **parameters,
            )
        return answer is not _NO

    async def _request(self, call: Call, operation: str, **parameters: Any) -> Any:
        """Return the answer of the service; `_NO` if the condition did not hold."""
        await self._connect(call)
        async with self._turns:
            call.sent = True
            try:
                return await getattr(self._client, operation)(TableName=self._table, **parameters)
            except ClientError as error:
                if _code(error) == _CONDITION_FAILED:
                    return _NO
                raise _refusal(call, error) from error
            except (BotoCoreError, OSError) as error:
                raise _lost_error(call, error) from error

    async def _connect(self, call: Call) -> None:
        async with self._opening:
            if self._client is not None:
                return
            async with AsyncExitStack() as stack:
                try:
                    self._client = await self._open_client(stack)
                except NoRegionError:
                    raise Invalid(f"{self._name}: no region; add region=… to its URL or set AWS_REGION") from None
                except ClientError as error:
                    raise _refusal(call, error) from error
                except (BotoCoreError, OSError, ValueError) as error:
                    raise _lost_error(call, error) from error
                self._opened = stack.pop_all()

    async def _open_client(self, stack: AsyncExitStack) -> Any:
        config = AioConfig(
            # A repeated conditional write would find its own first attempt and report that its condition did not hold.
            retries={"total_max_attempts": 1},
            connect_timeout=self._timeout * 0.9,
            read_timeout=self._timeout,
            max_pool_connections=CONNECTIONS,
        )
        session = get_session()
        session.register_component("data_loader", await asyncio.to_thread(_shared_loader))
        client = await stack.enter_async_context(session.create_client("dynamodb", config=config, **self._options))
        if self._create:
            await self._create_table(client)
        return client

    async def _create_table(self, client: Any) -> None:
        """Create the table if missing, and wait until it can be used."""
        try:
            await client.create_table(
                TableName=self._table,
                AttributeDefinitions=[{"AttributeName": "key", "AttributeType": "S"}],
                KeySchema=[{"AttributeName": "key", "KeyType": "HASH"}],
                BillingMode="PAY_PER_REQUEST",
            )
        except ClientError as error:
            if _code(error) != "ResourceInUseException":  # it exists, or is being created by another client
                raise
        while True:
            described = await client.describe_table(TableName=self._table)
            if described["Table"]["TableStatus"] in ("ACTIVE", "UPDATING"):
                break
            await asyncio.sleep(0.1)
        with suppress(ClientError):  # already enabled, or not supported: it is only garbage collection
            await client.update_time_to_live(
                TableName=self._table, TimeToLiveSpecification={"AttributeName": "sweep_at", "Enabled": True}
            )


_NO = object()


def _check_key(key: str) -> None:
    if (size := check_key(key)) > MAX_KEY_BYTES:
        raise TooLarge(f"key: {size} bytes, DynamoDB takes at most {MAX_KEY_BYTES}")


def _shared_loader() -> Any:
    """Return the client's large service descriptions, read once and in a thread, not per client on the event loop."""
    with _reading:
        if not _loaders:
            loader = get_session().get_component("data_loader")
            for description in ("service-2", "endpoint-rule-set-1"):
                loader.load_service_model("dynamodb", description)
            for data in ("endpoints", "partitions", "sdk-default-configuration"):
                loader.load_data(data)
            _loaders.append(loader)
    return _loaders[0]


_loaders: list[Any] = []
_reading = threading.Lock()


def _code(error: ClientError) -> str:
    """Return the error code of the service, without a namespace prefix."""
    return str(error.response.get("Error", {}).get("Code", "")).rpartition("#")[2]


def _refusal(call: Call, error: ClientError) -> HostlerError:
    """Return the error for an error response of the service."""
    said = error.response.get("Error", {}).get("Message") or _code(error)
    if _code(error) in _ANSWERS:
        kind, words = _ANSWERS[_code(error)]
        return kind(f"{call.subject}: {words} ({said})")
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
    if status >= 500:
        return call.failure(f"the service failed ({said})")
    return Refused(f"{call.subject}: the service refused it ({said})")


def _lost_error(call: Call, error: Exception) -> HostlerError:
    """Return the error for a missing answer. Only a connection that was never made proves that nothing was sent."""
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return Forbidden(
            f"{call.subject}: no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile"
        )
    if isinstance(error, ValueError) and not isinstance(error, BotoCoreError):
        return Invalid(f"{call.subject}: {error}")
    cause = error.kwargs.get("error") if isinstance(error, EndpointConnectionError) else None
    # The client raises the same error for a connection that broke while it waited for the answer.
    never_made = isinstance(cause, aiohttp.ClientConnectorError | aiohttp.ClientConnectorDNSError)
    if never_made or isinstance(error, ConnectTimeoutError | ProxyConnectionError | SSLError):
        return Unavailable(f"{call.subject}: cannot connect ({error}); nothing was written, try later")
    return call.failure(f"the connection broke ({error})")
