"""Ttl storages by their URLs."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote

from hostler.errors import Invalid
from hostler.wiring.store import STORES
from hostler.wiring.url import DEFAULT_TIMEOUT, Options, opened_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hostler.ports.store import Store
    from hostler.ports.ttl import TtlStorage


def open_ttl_storage(url: str) -> TtlStorage:
    """The ttl storage behind `url`, to be entered with `async with`.

    Every store URL; `redis://host:port/db`, `rediss://…`, `dynamodb://table?region=…`, `cassandra://host:port/keyspace`.
    """
    return opened_by(url, _TTL_STORAGES, "ttl storage URL")


def ttl_storage_on(store: Store) -> TtlStorage:
    """A ttl storage on a store that somebody else opens and closes; it is not entered."""
    from hostler.drivers.ttl.store import StoreTtlStorage

    return StoreTtlStorage(store)


def _on_store(opener: Callable[[SplitResult, Options], Store]) -> Callable[[SplitResult, Options], TtlStorage]:
    def opened(url: SplitResult, options: Options) -> TtlStorage:
        return ttl_storage_on(opener(url, options))

    return opened


def _open_redis(url: SplitResult, options: Options) -> TtlStorage:
    with _extra("redis"):
        from hostler.drivers.ttl.redis import RedisTtlStorage

    host, port = _address(url, 6379)
    db = unquote(url.path).strip("/") or "0"
    if not db.isdecimal():
        raise Invalid(f"ttl storage URL {url.scheme}://…: {db!r} is no number of a database; write …/0")
    tls = url.scheme == "rediss"
    files = {name: options.text(name) for name in ("ca", "cert", "key")} if tls else {}
    return RedisTtlStorage(
        host,
        port,
        db=int(db),
        user=_user(url, options),
        password=_password(url, options),
        tls=tls,
        timeout=options.number("timeout", DEFAULT_TIMEOUT, least=0.01),
        **files,
    )


def _open_dynamodb(url: SplitResult, options: Options) -> TtlStorage:
    with _extra("dynamodb"):
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
    with _extra("cassandra"):
        from hostler.drivers.ttl.cassandra import TABLE, CassandraTtlStorage

    hosts, port = _address(url, 9042)
    keyspace, table = unquote(url.path).strip("/"), options.text("table") or TABLE
    for name in (keyspace, table):
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,47}", name):
            raise Invalid(
                f"ttl storage URL cassandra://…: {name!r} is no name of a keyspace or table: "
                "a letter, then letters, digits or _; write cassandra://host:port/keyspace"
            )
    return CassandraTtlStorage(
        hosts.split(","),
        port,
        keyspace=keyspace,
        table=table,
        user=_user(url, options),
        password=_password(url, options),
        datacenter=options.text("datacenter"),
        create=options.flag("create"),
        replicas=int(options.number("replicas", 0, least=1)) or None,
        timeout=options.number("timeout", DEFAULT_TIMEOUT, least=0.01),
    )


def _address(url: SplitResult, default_port: int) -> tuple[str, int]:
    """Host and port of a URL that has one of each."""
    try:
        port = url.port or default_port
    except ValueError:
        port = 0
    if not url.hostname or not port:
        raise Invalid(f"ttl storage URL {url.scheme}://…: {url.netloc.rpartition('@')[2]!r} is no host:port")
    return url.hostname, port


def _user(url: SplitResult, options: Options) -> str | None:
    return options.text("user") or unquote(url.username or "") or None


def _password(url: SplitResult, options: Options) -> str | None:
    return options.password() or unquote(url.password or "") or None


@contextmanager
def _extra(name: str) -> Iterator[None]:
    """Around the import of a driver whose client is an extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "hostler":
            raise
        raise Invalid(f"{name}: its client is not installed; run: pip install 'hostler[{name}]'") from None


_TTL_STORAGES: Mapping[str, Callable[[SplitResult, Options], TtlStorage]] = {
    **{scheme: _on_store(opener) for scheme, opener in STORES.items()},
    "redis": _open_redis,
    "rediss": _open_redis,
    "dynamodb": _open_dynamodb,
    "cassandra": _open_cassandra,
}
