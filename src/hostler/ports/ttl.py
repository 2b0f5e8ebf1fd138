"""Records that expire: what elections stand on.

Less than a store, so that more can offer it: Redis, DynamoDB, Cassandra, and every `Store`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

from hostler.errors import Invalid
from hostler.ports.store import check_key, check_ttl

if TYPE_CHECKING:
    from types import TracebackType

    from hostler.ports.store import Comparison, Store

MAX_VALUE_BYTES = 65_536
"""A record is an address and a few numbers; storages differ in what they take beyond that."""


@runtime_checkable
class TtlStorage(Protocol):
    """Text under keys, each with a life of its own. Every verb is one atomic step of the storage.

    True: it was done. False: the condition did not hold, nothing changed. Unavailable: nothing changed. Uncertain: it
    may have been done; read before you act. The two kinds of "no" are never mixed.

    `ttl=0` never expires. A record whose time has come is gone: no verb finds it, and none waits for a sweep that
    removes it. A driver never repeats a verb whose outcome it does not know.
    """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    async def insert_if_not_exist(self, key: str, value: str, *, ttl: float) -> bool:
        """Take a free or expired key."""

    async def compare_and_swap(self, key: str, old: str, new: str, *, ttl: float) -> bool:
        """Replace a live record that equals `old`, and let it live for another `ttl` from now.

        `old == new` renews: the record lives at least that long, and a renewal that arrives after a later one never
        shortens its life.
        """

    async def compare_and_delete(self, key: str, old: str) -> bool:
        """Remove a live record that equals `old`."""

    async def get(self, key: str) -> str | None:
        """The live record, or None."""

    def lateness(self, ttl: float) -> float:
        """How many seconds after its end a record of `ttl` may at most still be found. It is never gone early."""

    async def aclose(self) -> None:
        """Let go of everything. Twice is fine."""


@runtime_checkable
class Watchable(Protocol):
    """What a storage that can watch has beside the verbs; with the others, one polls."""

    async def wait_change(self, key: str, seen: str | None, *, within: float) -> str | None:
        """Until the live record differs from `seen`, or `within` seconds have passed; the live record then.

        Unavailable: as for `get`.
        """


@runtime_checkable
class StoreBacked(Protocol):
    """What a storage that is a store has beside the verbs: the store itself, and what guards its transactions."""

    @property
    def store(self) -> Store:
        """Open while the storage is."""

    def guard(self, key: str, value: str) -> Comparison:
        """A comparison for the store's transactions: it holds while the live record at `key` equals `value`."""


@runtime_checkable
class TellsLife(Protocol):
    """What a storage may have beside the verbs, for people who look."""

    async def time_left(self, key: str) -> float | None:
        """Seconds until the live record ends unless it is renewed; None: there is none, or nobody can tell."""


def check_record(key: str, value: str) -> None:
    """Invalid: what cannot be a record."""
    check_key(key)
    _check_text(key, value)


def check_swap(key: str, old: str, new: str) -> None:
    """Invalid: what cannot be compared or stored."""
    check_key(key)
    _check_text(key, old)
    _check_text(key, new)


def check_life(ttl: float) -> float:
    """The ttl as a float; 0 for a record that never expires. Invalid: negative, not finite, or no number."""
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
