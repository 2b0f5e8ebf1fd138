"""TTL storages by their URLs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote

from hostler.errors import Invalid
from hostler.wiring.redis import redis_link
from hostler.wiring.store import STORES
from hostler.wiring.url import DEFAULT_TIMEOUT, ESCAPE, Options, address, extra, opened_by, password_of, user_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hostler.ports.store import Store
    from hostler.ports.ttl import TtlStorage


def open_ttl_storage(url: str) -> TtlStorage:
    """Return the TTL storage at `url`, to be entered with `async with`.

    Every store URL; `redis://host:port/db`, `rediss://…`, `dynamodb://table?region=…`,
    `cassandra://host:port/keyspace`.
    """
    return opened_by(url, _TTL_STORAGES, "ttl storage URL")


def ttl_storage_on(store: Store) -> TtlStorage:
    """Return a TTL storage on a store that is opened and closed elsewhere; it is not entered."""
    from hostler.drivers.ttl.store import StoreTtlStorage

    return StoreTtlStorage(store)


def _on_store(opener: Callable[[SplitResult, Options], Store]) -> Callable[[SplitResult, Options], TtlStorage]:
    def opened(url: SplitResult, options: Options) -> TtlStorage:
        return ttl_storage_on(opener(url, options))

    return opened


def _open_redis(url: SplitResult, options: Options) -> TtlStorage:
    with extra("redis"):
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
        from hostler.drivers.ttl.cassandra import TABLE, CassandraTtlStorage

    hosts, port = address(url, 9042, "ttl storage URL")
    keyspace, table = unquote(url.path).strip("/"), options.text("table") or TABLE
    for name in (keyspace, table):
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,47}", name):
            raise Invalid(
                "ttl storage URL cassandra://…: keyspace and table must be a letter, then"
                f" letters, digits or _; write cassandra://host:port/keyspace; {ESCAPE}"
            )
    return CassandraTtlStorage(
        hosts.split(","),
        port,
        keyspace=keyspace,
        table=table,
        user=user_of(url, options),
        password=password_of(url, options),
        datacenter=options.text("datacenter"),
        create=options.flag("create"),
        replicas=int(options.number("replicas", 0, least=1)) or None,
        timeout=options.number("timeout", DEFAULT_TIMEOUT, least=0.01),
    )


_TTL_STORAGES: Mapping[str, Callable[[SplitResult, Options], TtlStorage]] = {
    **{scheme: _on_store(opener) for scheme, opener in STORES.items()},
    "redis": _open_redis,
    "rediss": _open_redis,
    "dynamodb": _open_dynamodb,
    "cassandra": _open_cassandra,
}
