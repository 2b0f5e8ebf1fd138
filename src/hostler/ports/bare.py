"""An engine without Hostler: the same work through its bare binding, so that a benchmark tells what Hostler costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from types import TracebackType


class Bare(Protocol):
    """For measuring only: no deadlines, no errors of ours, nothing that a store promises beyond durable writes."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    async def put(self, key: bytes, value: bytes) -> int:
        """Set a key, durably; the revision."""

    async def get(self, key: bytes) -> bytes | None:
        """The key's value."""

    async def txn3(self, keys: Sequence[bytes], value: bytes) -> bool:
        """One comparison that holds, then three puts, in one transaction."""

    async def range(self, prefix: bytes, limit: int) -> Sequence[tuple[bytes, bytes]]:
        """Keys and values under a prefix, in order."""


@runtime_checkable
class BareBatches(Bare, Protocol):
    """An engine to which many writes go in one transaction, and which tells of them."""

    async def batch(self, keys: Sequence[bytes], value: bytes, *, compared: int, read: int) -> bool:
        """So many comparisons that hold, then a put of each key; `read` of them would be read if one did not hold."""

    def watch(self, prefix: bytes, *, previous: bool = True) -> AsyncGenerator[tuple[bytes, bytes]]:
        """Keys and values as they are put; the first item is empty and says that the watch stands."""
