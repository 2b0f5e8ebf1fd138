"""Direct access to a storage engine through its own client, so that a benchmark can measure Hostler's overhead."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable
from urllib.parse import urlsplit

from hostler.entry.cli.options import local_path

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from types import TracebackType


class Bare(Protocol):
    """A storage engine without Hostler, for benchmarks only.

    It has no deadlines, does not translate errors, and promises nothing of `Store` except durable writes.
    """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    async def put(self, key: bytes, value: bytes) -> int:
        """Set a key durably and return the revision."""

    async def get(self, key: bytes) -> bytes | None:
        """Return the value of the key."""

    async def txn3(self, keys: Sequence[bytes], value: bytes) -> bool:
        """Run one transaction of a comparison that holds and three puts."""

    async def range(self, prefix: bytes, limit: int) -> Sequence[tuple[bytes, bytes]]:
        """Return keys and values under a prefix, in order."""


@runtime_checkable
class BareBatches(Bare, Protocol):
    """An engine that accepts many writes in one transaction and can be watched."""

    async def batch(self, keys: Sequence[bytes], value: bytes, *, compared: int, read: int) -> bool:
        """Run one transaction: `compared` comparisons that hold, then one put per key.

        `read` is the number of keys that the transaction would read if a comparison did not hold.
        """

    def watch(self, prefix: bytes, *, previous: bool = True) -> AsyncGenerator[tuple[bytes, bytes]]:
        """Yield keys and values as they are put. The first item is empty: the watch is established."""


def open_bare(url: str) -> Bare | None:
    """Return the engine at `url` without Hostler; None if there is nothing below the driver.

    SQLite gets a separate file next to the store's. etcd is accessed through its first endpoint, without TLS.
    """
    parts, path = urlsplit(url), local_path(url)
    if parts.scheme == "sqlite" and path is not None:
        from bench.bare_sqlite import BareSqlite

        return BareSqlite(f"{path}.bare")
    if parts.scheme == "etcd" and not parts.query:
        from bench.bare_etcd import BareEtcd

        first = parts.netloc.split(",")[0]
        return BareEtcd(first if re.search(r":\d+$", first) else f"{first}:2379")
    return None
