"""`Key[T]`: a key template and the type of the records at its keys; and several families under one prefix.

    VM = Key("/plasmavmc/vms/{org}/{project}/{vm}", VirtualMachine)

Operations and comparisons are values for transactions; verbs that take a store act at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from hostler.errors import Conflict, Damaged, Invalid
from hostler.keys.entry import PAGE, Change, Entry, KeyWatch, Listing, Scan, Unreadable
from hostler.keys.template import Template
from hostler.model.record import Record
from hostler.ports.store import CreateRevision, Delete, Get, KeyValue, ModRevision, Put, Version, watching

if TYPE_CHECKING:
    from hostler.ports.store import Comparison, Event, Lease, Operation, Store

T = TypeVar("T")


class Key(Generic[T]):
    """One family of keys. `record` is a Record, or a plain type whose JSON is the value (a counter)."""

    def __init__(self, template: str, record: type[T]) -> None:
        self._template = Template(template)
        self.template, self.names, self.record = template, self._template.names, record

    def __repr__(self) -> str:
        return f"Key({self.template!r}, {self.record.__name__})"

    # Names

    def fill(self, **parts: str | int) -> str:
        """Return the key with these parts."""
        return self._template.fill(parts)

    def parse(self, key: str) -> dict[str, str]:
        """Return the parts of `key`, as text. Invalid: it does not belong to this family."""
        parts = self._template.parse(key)
        if parts is None:
            raise Invalid(f"key {key!r}: not of the form {self.template}")
        return parts

    def match(self, key: str) -> dict[str, str] | None:
        """Return the parts of `key`; None if it does not belong to this family."""
        return self._template.parse(key)

    def matches(self, key: str) -> bool:
        """Return whether `key` belongs to this family."""
        return self._template.matches(key)

    def prefix(self, **leading: str | int) -> str:
        """Return the common prefix of all keys with these leading parts; it ends in a slash."""
        return self._template.prefix(leading)

    # Values

    def encode(self, value: T) -> bytes:
        """Return the bytes to store. Invalid: `value` has the wrong type."""
        if not isinstance(value, self.record) or (self.record is int and isinstance(value, bool)):
            raise Invalid(f"{self.template}: takes a {self.record.__name__}, not a {type(value).__name__}")
        return value.encode() if isinstance(value, Record) else msgspec.json.encode(value)

    def decode(self, data: bytes, *, where: str | None = None) -> T:
        """Return the value encoded in `data`. Damaged: it cannot be decoded."""
        where = where or self.template
        if issubclass(self.record, Record):
            return self.record.stored(data, where=where)
        try:
            return msgspec.json.decode(data, type=self.record)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Damaged(f"{where}: {error}; correct the value or delete the key") from None

    def entry(self, kv: KeyValue) -> Entry[T]:
        """Return a KeyValue of this family as an Entry, for the response to `get_op`.

        Invalid, Damaged: it is not one.
        """
        if not self._template.matches(kv.key):
            self.parse(kv.key)
        return self._entry(kv)

    def readable(self, found: object) -> Entry[T] | None:
        """Return what was read as an Entry. None: absent, or not decodable, which `hostler doctor` reports."""
        if not isinstance(found, KeyValue) or not self._template.matches(found.key):
            return None
        try:
            return self._entry(found)
        except Damaged:
            return None

    # For transactions

    def put(self, value: T, *, lease: int | Lease | None = None, **parts: str | int) -> Put:
        return Put(self.fill(**parts), self.encode(value), lease)

    def delete(self, **parts: str | int) -> Delete:
        return Delete(self.fill(**parts))

    def get_op(self, **parts: str | int) -> Get:
        """Return an operation that reads the record; pass its response to `entry`."""
        return Get(self.fill(**parts))

    def absent(self, **parts: str | int) -> Comparison:
        """Return a comparison: the key does not exist."""
        return Version(self.fill(**parts)) == 0

    def exists(self, **parts: str | int) -> Comparison:
        """Return a comparison: the key exists."""
        return Version(self.fill(**parts)) > 0

    def unchanged(self, entry: Entry[T]) -> Comparison:
        """Return a comparison: the key was neither written nor deleted since `entry` was read."""
        return ModRevision(entry.key) == entry.mod_revision

    def same_life(self, entry: Entry[T]) -> Comparison:
        """Return a comparison: the key was not deleted since `entry` was read, though it may have been written."""
        return CreateRevision(entry.key) == entry.create_revision

    def version(self, **parts: str | int) -> Version:
        """Return the key's version, to be compared: `VM.version(**ids) == 3`."""
        return Version(self.fill(**parts))

    # On a store

    async def get(self, store: Store, /, *, revision: int | None = None, **parts: str | int) -> Entry[T] | None:
        """Return the record now, or as it was at `revision`. Damaged: the value cannot be decoded."""
        kv = await store.get(self.fill(**parts), revision=revision)
        return None if kv is None else self._entry(kv)

    def scan(
        self, store: Store, /, *, revision: int | None = None, page_size: int = PAGE, **leading: str | int
    ) -> Scan[T]:
        """Iterate over the family, or the part of it under `leading`. Keys of other families there are skipped."""
        return Scan(store, self.prefix(**leading), self._found, revision=revision, page_size=page_size)

    async def list(
        self,
        store: Store,
        /,
        *,
        revision: int | None = None,
        page_size: int = PAGE,
        strict: bool = True,
        **leading: str | int,
    ) -> Listing[T]:
        """Read the whole family, or the part under `leading`.

        Damaged: a value cannot be decoded. Not `strict`: such keys are listed separately.
        """
        entries: list[Entry[T]] = []
        unreadable: list[Unreadable] = []
        scan = self.scan(store, revision=revision, page_size=page_size, **leading)
        async for found in scan:
            if not isinstance(found, Unreadable):
                entries.append(found)
            elif strict:
                raise found.error
            else:
                unreadable.append(found)
        return Listing(tuple(entries), scan.revision or 0, tuple(unreadable))

    def watch(
        self, store: Store, /, *, start_revision: int | None = None, previous: bool = True, **leading: str | int
    ) -> KeyWatch[T]:
        """Watch the family, or the part of it under `leading`; `previous`: include the previous values."""
        watch = watching(store, self.prefix(**leading), start_revision=start_revision, previous=previous)
        return KeyWatch(watch, self._change if previous else self._news)

    async def create(
        self, store: Store, value: T, /, *, lease: int | Lease | None = None, **parts: str | int
    ) -> Entry[T]:
        """Write a record that does not exist yet. Conflict: it exists."""
        operation = self.put(value, lease=lease, **parts)
        result = await store.txn([self.absent(**parts)], [operation, self.get_op(**parts)])
        if not result.succeeded:
            raise Conflict(f"{operation.key}: it exists already; read it first")
        return self._response(result.responses[1])

    async def replace(
        self, store: Store, entry: Entry[T], value: T, /, *, lease: int | Lease | None = None
    ) -> Entry[T]:
        """Replace what was read; without `lease` the key belongs to none. Conflict: another writer was first."""
        then: list[Operation] = [Put(entry.key, self.encode(value), lease), Get(entry.key)]
        result = await store.txn([self.unchanged(entry)], then)
        if not result.succeeded:
            raise Conflict(f"{entry.key}: changed since revision {entry.mod_revision} was read; read it again")
        return self._response(result.responses[1])

    async def remove(self, store: Store, entry: Entry[T], /) -> None:
        """Delete what was read. Conflict: another writer was first."""
        result = await store.txn([self.unchanged(entry)], [Delete(entry.key)])
        if not result.succeeded:
            raise Conflict(f"{entry.key}: changed since revision {entry.mod_revision} was read; read it again")

    # Internal

    def _response(self, response: object) -> Entry[T]:
        return self.entry(response)  # type: ignore[arg-type]

    def _entry(self, kv: KeyValue) -> Entry[T]:
        value = self.decode(kv.value, where=kv.key)
        created, modified = kv.create_revision, kv.mod_revision
        if created == modified:
            modified = created  # one number in memory, not two
        return Entry(value, self._template, kv.key, created, modified, kv.version, kv.lease)

    def _found(self, kv: KeyValue) -> Entry[T] | Unreadable | None:
        if not self._template.matches(kv.key):
            return None
        try:
            return self._entry(kv)
        except Damaged as error:
            return Unreadable(error, self.parse(kv.key), kv)

    def _change(self, event: Event) -> Change[T] | None:
        change = self._news(event)
        if change is None or event.previous is None:
            return change
        return msgspec.structs.replace(change, previous=self._found(event.previous))

    def _news(self, event: Event) -> Change[T] | None:
        key = event.kv.key
        parts = self.match(key)
        if parts is None:
            return None
        current = self._found(event.kv) if event.type == "put" else None
        return Change(event.type, key, parts, event.kv.mod_revision, current)


class Union(Key[Any]):
    """A family for caches, scans and watches.

    Its entries have the record type of their own family, which writes them.
    """

    def __init__(self, prefix: str, *keys: Key[Any]) -> None:
        super().__init__(prefix + "{rest}", Record)
        self._prefix, self.keys = prefix, keys
        """The first match counts; the most frequent family comes first."""

    def fill(self, **parts: str | int) -> str:
        """Raise Invalid: use one of the families."""
        raise Invalid(f"{self._prefix}: holds several families of keys; fill a key of one family; given: {parts}")

    def match(self, key: str) -> dict[str, str] | None:
        """Return the parts of `key`; None if it belongs to none of the families."""
        family = self.of(key)
        return None if family is None else family.match(key)

    def prefix(self, **leading: str | int) -> str:
        """Return the common prefix; it takes no parts."""
        if leading:
            self.fill(**leading)
        return self._prefix

    def of(self, key: str) -> Key[Any] | None:
        """Return the family that a key belongs to."""
        return next((family for family in self.keys if family.match(key) is not None), None)

    def _found(self, kv: KeyValue) -> Entry[Any] | Unreadable | None:
        for family in self.keys:
            found = family._found(kv)
            if found is not None:
                return found
        return None
