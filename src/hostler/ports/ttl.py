"""Records that expire: the basis of leader election.

This port has fewer verbs than `Store`, so that more backends can implement it: Redis, DynamoDB, Cassandra, every
`Store`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

from hostler.errors import Invalid
from hostler.ports.store import check_key, check_ttl

if TYPE_CHECKING:
    from types import TracebackType

    from hostler.ports.store import Comparison, Store

MAX_VALUE_BYTES = 65_536
"""A record is an address and a few numbers; storages differ in what they accept beyond that."""


@runtime_checkable
class TtlStorage(Protocol):
    """Text records under keys, each with its own TTL. Every verb is one atomic step of the storage.

    True: done. False: the condition did not hold, nothing changed. Unavailable: nothing changed. Uncertain: it may have
    been done; read before you act. False and Unavailable are never confused.

    `ttl=0` never expires. An expired record is gone: no verb finds it, even before the storage physically removes it. A
    driver never repeats a verb whose outcome it does not know.
    """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    async def insert_if_not_exist(self, key: str, value: str, *, ttl: float) -> bool:
        """Create the record if the key is free or expired."""

    async def compare_and_swap(self, key: str, old: str, new: str, *, ttl: float) -> bool:
        """Replace a live record that equals `old`, with a new `ttl` from now.

        `old == new` renews: the record lives at least that long, and a renewal that arrives after a later one never
        shortens its life.
        """

    async def compare_and_delete(self, key: str, old: str) -> bool:
        """Delete a live record that equals `old`."""

    async def get(self, key: str) -> str | None:
        """Return the live record, or None."""

    def lateness(self, ttl: float) -> float:
        """Return how many seconds after its end a record of `ttl` may at most still be found.

        It is never gone early.
        """

    async def aclose(self) -> None:
        """Release everything. Closing twice is fine."""


@runtime_checkable
class Watchable(Protocol):
    """Optional ability: a storage that can watch a record. Callers poll storages that cannot."""

    async def wait_change(self, key: str, seen: str | None, *, within: float) -> str | None:
        """Wait until the live record differs from `seen`, or for `within` seconds; return the live record.

        Unavailable: as for `get`.
        """


@runtime_checkable
class StoreBacked(Protocol):
    """Optional ability: a storage built on a store gives access to the store and to a guard for its transactions."""

    @property
    def store(self) -> Store:
        """The store, open while the storage is open."""

    def guard(self, key: str, value: str) -> Comparison:
        """Return a comparison for the store's transactions: it holds while the live record at `key` equals `value`."""


@runtime_checkable
class TellsLife(Protocol):
    """Optional ability of a storage, for people: read the remaining life of a record."""

    async def time_left(self, key: str) -> float | None:
        """Return the seconds until the live record ends unless renewed; None: no live record, or not known."""


def check_record(key: str, value: str) -> None:
    """Raise Invalid for a key or value that is not valid."""
    check_key(key)
    _check_text(key, value)


def check_swap(key: str, old: str, new: str) -> None:
    """Raise Invalid for a key or value that cannot be compared or stored."""
    check_key(key)
    _check_text(key, old)
    _check_text(key, new)


def check_life(ttl: float) -> float:
    """Return the TTL as a float; 0 for a record that never expires. Invalid: negative, not finite, or not a number."""
    if not isinstance(ttl, bool) and isinstance(ttl, int | float) and ttl == 0:
        return 0.0
    return check_ttl(ttl)


def _check_text(key: str, value: str) -> None:
    if not isinstance(value, str):
        raise Invalid(f"record {key!r}: its value must be a str, not {type(value).__name__}")
    if not value:
        raise Invalid(f"record {key!r}: its value must not be empty")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise Invalid(f"record {key!r}: its value is not encodable as UTF-8 ({error.reason})") from None
    if size > MAX_VALUE_BYTES:
        raise Invalid(f"record {key!r}: {size} bytes, at most {MAX_VALUE_BYTES} are allowed")
