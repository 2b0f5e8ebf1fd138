"""Typed results of reads: values with their revisions, and keys whose value cannot be decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Literal, Self, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from types import TracebackType

    from hostler.errors import Damaged
    from hostler.keys.template import Template
    from hostler.ports.store import Event, KeyValue, Store, Watch

T = TypeVar("T")

PAGE = 500
"""Keys per page when reading from the store."""


class Entry(msgspec.Struct, Generic[T], frozen=True, eq=False, gc=False):
    """A value, the parts of its key, and its revisions in the store.

    Hundreds of thousands are kept in memory. The parts are therefore parsed from the key on demand, and the garbage
    collector does not track entries (records hold no cycles).
    """

    value: T
    names: dict[str, str] | Template
    """The parts, or the template that parses them from the key."""
    key: str
    create_revision: int
    mod_revision: int
    version: int
    lease: int | None = None

    @property
    def parts(self) -> dict[str, str]:
        """The parts of the key, as text."""
        return self.names if isinstance(self.names, dict) else self.names.parse(self.key) or {}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Entry):
            return NotImplemented
        return self._all() == other._all()

    __hash__ = None  # type: ignore[assignment]

    def _all(self) -> tuple[object, ...]:
        return (
            *(self.key, self.create_revision, self.mod_revision, self.version, self.lease),
            *(self.value, self.parts),
        )


class Unreadable(msgspec.Struct, frozen=True):
    """A key of the family whose value cannot be decoded. Not the same as an absent key."""

    error: Damaged
    parts: dict[str, str]
    kv: KeyValue

    @property
    def key(self) -> str:
        return self.kv.key


class Listing(msgspec.Struct, Generic[T], frozen=True):
    """Everything under a prefix as of `revision`; a watch from `revision + 1` misses nothing."""

    entries: tuple[Entry[T], ...]
    revision: int
    unreadable: tuple[Unreadable, ...] = ()


class Change(msgspec.Struct, Generic[T], frozen=True):
    """One event. `current` is None for a delete; `previous` is None if the key was absent, or compacted."""

    type: Literal["put", "delete"]
    key: str
    parts: dict[str, str]
    revision: int
    current: Entry[T] | Unreadable | None
    previous: Entry[T] | Unreadable | None = None


class Scan(Generic[T]):
    """Iterates over the keys under a prefix, in key order, page by page, all as of one revision.

    `revision` is known once the first page is read. Compacted: the history was compacted during the scan; start again.
    """

    revision: int | None

    def __init__(
        self,
        store: Store,
        prefix: str,
        entry: Callable[[KeyValue], Entry[T] | Unreadable | None],
        *,
        revision: int | None,
        page_size: int,
    ) -> None:
        self._store, self._prefix, self._entry, self._page_size = store, prefix, entry, page_size
        self.revision = revision

    async def __aiter__(self) -> AsyncIterator[Entry[T] | Unreadable]:
        after: str | None = None
        more = True
        while more:
            page = await self._store.range(self._prefix, after=after, limit=self._page_size, revision=self.revision)
            self.revision = page.revision
            for kv in page.items:
                found = self._entry(kv)
                if found is not None:
                    yield found
            more = page.more
            if more:
                after = page.items[-1].key


class KeyWatch(Generic[T]):
    """A watch that delivers records. It ends as the store's own watch does; no value can end it."""

    def __init__(self, watch: Watch, change: Callable[[Event], Change[T] | None]) -> None:
        self._watch, self._change = watch, change

    async def __aenter__(self) -> Self:
        await self._watch.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._watch.__aexit__(kind, error, traceback)

    def __aiter__(self) -> AsyncIterator[Change[T]]:
        return self

    async def __anext__(self) -> Change[T]:
        while True:
            change = self._change(await self._watch.__anext__())
            if change is not None:
                return change
