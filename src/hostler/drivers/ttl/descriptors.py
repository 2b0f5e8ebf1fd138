"""The descriptors of the TTL storages that are not stores: how a URL opens each."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from hostler.errors import Invalid
from hostler.ports.url import DEFAULT_TIMEOUT, ESCAPE, TtlDriver, address, extra, password_of, user_of

if TYPE_CHECKING:
    from urllib.parse import SplitResult

    from hostler.ports.ttl import TtlStorage
    from hostler.ports.url import Options


def _open_redis(url: SplitResult, options: Options) -> TtlStorage:
    with extra("redis"):
        from hostler.drivers.redis_client import redis_link
        from hostler.drivers.ttl.redis import RedisTtlStorage

        return RedisTtlStorage(redis_link(url, options, "ttl storage URL", opener="hostler.open_ttl_storage"))


def _open_dynamodb(url: SplitResult, options: Options) -> TtlStorage:
    with extra("dynamodb"):
        from hostler.drivers.ttl.dynamodb import DynamodbTtlStorage

    if not re.fullmatch(r"[A-Za-z0-9_.-]{3,255}", url.netloc) or url.path not in ("", "/"):
        raise Invalid("ttl storage URL dynamodb://…: names a table: 3 to 255 of A-Z, a-z, 0-9, _, . and -")
    return DynamodbTtlStorage(
        url.netloc,
        endpoint=options.text("endpoint"),
        region=options.text("region"),
        create=options.flag("create"),
        timeout=options.number("timeout", DEFAULT_TIMEOUT, least=0.01),
    )


def _open_cassandra(url: SplitResult, options: Options) -> TtlStorage:
    with extra("cassandra"):
        from hostler.drivers.ttl.cassandra import TABLE, CassandraServers, CassandraTable, CassandraTtlStorage

    hosts, port = address(url, 9042, "ttl storage URL")
    keyspace, table = unquote(url.path).strip("/"), options.text("table") or TABLE
    for name in (keyspace, table):
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,47}", name):
            raise Invalid(
                "ttl storage URL cassandra://…: keyspace and table must be a letter, then"
                f" letters, digits or _; write cassandra://host:port/keyspace; {ESCAPE}"
            )
    servers = CassandraServers(
        tuple(hosts.split(",")),
        port,
        user=user_of(url, options),
        password=password_of(url, options),
        datacenter=options.text("datacenter"),
    )
    records = CassandraTable(
        keyspace,
        name=table,
        create=options.flag("create"),
        replicas=int(options.number("replicas", 0, least=1)) or None,
    )
    return CassandraTtlStorage(servers, records, timeout=options.number("timeout", DEFAULT_TIMEOUT, least=0.01))


REDIS = TtlDriver(about="a Redis server", open=_open_redis)
REDISS = TtlDriver(about="a Redis server over TLS", open=_open_redis)
DYNAMODB = TtlDriver(about="a DynamoDB table", open=_open_dynamodb)
CASSANDRA = TtlDriver(about="a Cassandra keyspace", open=_open_cassandra)
