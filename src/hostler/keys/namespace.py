"""Namespaces: production and test namespaces in one store, and the store as seen from one of them.

In production every key is as the contracts write it. In a test namespace `Xxxx` a key is stored at
`/CloudChamber/V0.1/Test/Xxxx/` + the key without `/CloudChamber/V0.1` and without a leading slash, and names in Redis
begin with `Test:Xxxx:`. Other code does not see the difference: it uses production keys on a store that translates
them.

The reverse translation is exact because the roots are known: keys under `users/` came from `/CloudChamber/V0.1/users/`,
keys under `plasmavmc/` from `/plasmavmc/`, and keys without such a root had no slash. A key for which this does not
hold (`users/x` without its root, `/unheard/of`) is refused.
"""

from __future__ import annotations

import datetime as dt
import re
import secrets
from typing import TYPE_CHECKING, Self

import msgspec

from hostler.errors import Compacted, Invalid
from hostler.keys.families import KEYS, ROOT
from hostler.kit.tasks import Closing
from hostler.ports.store import (
    Delete,
    DeletePrefix,
    Event,
    Get,
    KeyValue,
    Maintained,
    Page,
    Put,
    Status,
    TellsLeases,
    TxnResult,
    check_delete_prefix,
    check_key,
    check_prefix,
    check_put,
    check_range,
    check_txn,
    watching,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
    from types import TracebackType

    from hostler.kit.clock import Clock
    from hostler.ports.store import Comparison, Lease, Operation, Response, Store, Watch
    from hostler.settings import NamespaceOptions


TEST_ROOT = f"{ROOT}/Test/"
STANDARD = "Standard"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}", re.ASCII)


def _without_root(key: str) -> str:
    return key.removeprefix(ROOT).removeprefix("/")


def _slash_roots() -> tuple[str, ...]:
    """Return the roots, up to their first segment, of all families whose keys begin with a slash."""
    roots = set()
    for key in KEYS:
        if key.template.startswith("/"):
            base = f"{ROOT}/" if key.template.startswith(f"{ROOT}/") else "/"
            roots.add(base + key.template.removeprefix(base).split("/")[0] + "/")
    return tuple(sorted(roots))


SLASH_ROOTS = _slash_roots()


class Run(msgspec.Struct, frozen=True):
    """Production keys that are also adjacent in the store: those under `prefix` are stored under `stored`.

    `pure`: no other keys are under `stored`. Otherwise keys of slash roots are mixed in, and only keys between `above`
    and `below` belong to the run.
    """

    prefix: str
    stored: str
    pure: bool = True
    above: str = ""
    below: str | None = None


class Namespace:
    """Production (`name` None), or a test namespace."""

    def __init__(self, name: str | None = None, *, slash_roots: Iterable[str] = SLASH_ROOTS) -> None:
        if name is not None and not _NAME.fullmatch(name):
            raise Invalid(f"namespace {name!r}: must be of letters, digits, dots and hyphens, at most 63")
        self.name = name
        self.prefix = "" if name is None else f"{TEST_ROOT}{name}/"
        self.redis_prefix = "" if name is None else f"Test:{name}:"
        self._roots = tuple(sorted(slash_roots))
        self._by_tail = {_without_root(root): root for root in self._roots}

    def __repr__(self) -> str:
        return f"Namespace({self.name!r})"

    def stored(self, key: str) -> str:
        """Return the stored key of a production key. Invalid: the translation could not be reversed."""
        if self.name is None:
            return key
        tail = _without_root(key)
        if not tail or self._with_root(tail) != key:
            raise Invalid(
                f"key {key!r}: not allowed in the test namespace {self.name}, where it would be the same as"
                f" {self._with_root(tail)!r}; begin the key with one of {', '.join(self._roots)} or with no slash"
            )
        return self.prefix + tail

    def production(self, stored: str) -> str | None:
        """Return the production key of `stored`; None: it is not in this namespace."""
        if self.name is None:
            return stored
        tail = stored.removeprefix(self.prefix)
        if tail == stored or not tail:
            return None
        key = self._with_root(tail)
        return key if _without_root(key) == tail else None

    def runs(self, prefix: str) -> tuple[Run, ...]:
        """Return where the production keys under `prefix` are stored, in production order.

        Production order is: keys that begin with a character below a slash, the slash roots, the rest. In a test
        namespace the roots are stored among the rest, so a range that production reads at once is read here run by run.
        """
        roots = tuple(run for root in self._roots if (run := self._root_run(prefix, root)) is not None)
        if prefix.startswith("/"):
            return roots
        if not prefix:
            low = Run("", self.prefix, pure=False, below="/")
            return (low, *roots, Run("", self.prefix, pure=False, above="/"))
        if any(prefix.startswith(tail) for tail in self._by_tail):
            return ()
        pure = not any(tail.startswith(prefix) for tail in self._by_tail)
        return (Run(prefix, self.prefix + prefix, pure=pure),)

    def _root_run(self, prefix: str, root: str) -> Run | None:
        if prefix.startswith(root):
            return Run(prefix, self.prefix + _without_root(prefix))
        return Run(root, self.prefix + _without_root(root)) if root.startswith(prefix) else None

    def _with_root(self, tail: str) -> str:
        first, slash, _ = tail.partition("/")
        root = self._by_tail.get(first + slash)
        return tail if root is None else root.removesuffix(first + slash) + tail


PRODUCTION = Namespace()


def choose(options: NamespaceOptions, *, wall: float, token: str) -> Namespace:
    """Return the namespace that the options name, for a store that is opened at `wall` (seconds since 1970).

    The name of a unique namespace is that time in UTC, so that names sort by age, and `token`, so that two that start
    at the same instant differ.
    """
    if not options.use_test_namespace:
        return PRODUCTION
    if not options.use_unique_instance:
        return Namespace(STANDARD)
    instant = dt.datetime.fromtimestamp(wall, dt.UTC)
    return Namespace(f"{instant:%Y%m%dT%H%M%S.%fZ}-{token}")


CHUNK = 500
"""Page size where a range spans several roots."""


class NamespacedStore(Closing):
    """Implements the store port over another store.

    Keys, order, paging, watches and transactions are those of a production store that holds this namespace alone. The
    differences all come from sharing one store: revisions count the writes of all namespaces; `compact` discards the
    history of all namespaces; `status` is of the whole store; the size of a request counts stored keys; and
    `delete_prefix` refuses a prefix under which other roots would be deleted too (`u`, because `users/` begins with
    it).

    Entering opens the inner store and leaving closes it. If the inner store is opened elsewhere, use this one
    unentered.
    """

    def __init__(self, inner: Store, namespace: Namespace) -> None:
        self._inner, self._namespace = inner, namespace

    @property
    def namespace(self) -> Namespace:
        return self._namespace

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def aclose(self) -> None:
        await self._inner.aclose()

    # Reading

    async def get(self, key: str, *, revision: int | None = None) -> KeyValue | None:
        check_key(key)
        kv = await self._inner.get(self._namespace.stored(key), revision=revision)
        return None if kv is None else _with_key(kv, key)

    async def range(
        self,
        prefix: str,
        *,
        after: str | None = None,
        limit: int | None = None,
        revision: int | None = None,
        keys_only: bool = False,
    ) -> Page:
        check_range(prefix, after, limit, revision)
        runs = self._namespace.runs(prefix)
        if len(runs) == 1 and runs[0].pure:
            return await self._one_run(runs[0], after, limit, revision, keys_only)
        while True:
            try:
                return await self._many_runs(runs, after, limit, revision, keys_only)
            except Compacted:  # of the revision that this method chose: read at a newer one
                if revision is not None:
                    raise

    async def _one_run(
        self, run: Run, after: str | None, limit: int | None, revision: int | None, keys_only: bool
    ) -> Page:
        start = _start(run, after)
        if start is None:
            return Page((), await self._revision(revision), more=False)
        page = await self._inner.range(
            run.stored, after=start or None, limit=limit, revision=revision, keys_only=keys_only
        )
        cut = len(run.stored)
        items = tuple(_with_key(kv, run.prefix + kv.key[cut:]) for kv in page.items)
        return Page(items, page.revision, page.more)

    async def _many_runs(
        self, runs: Sequence[Run], after: str | None, limit: int | None, revision: int | None, keys_only: bool
    ) -> Page:
        revision = await self._revision(revision)
        items: list[KeyValue] = []
        for run in runs:
            async for kv in self._keys(run, after, revision, keys_only):
                if len(items) == limit:
                    return Page(tuple(items), revision, more=True)
                items.append(kv)
        return Page(tuple(items), revision, more=False)

    async def _keys(self, run: Run, after: str | None, revision: int, keys_only: bool) -> AsyncIterator[KeyValue]:
        start = _start(run, after)
        more = start is not None
        while more:
            page = await self._inner.range(
                run.stored, after=start or None, limit=CHUNK, revision=revision, keys_only=keys_only
            )
            for kv in page.items:
                key = run.prefix + kv.key[len(run.stored) :]
                if run.below is not None and key >= run.below:
                    return
                if run.pure or self._namespace.production(kv.key) == key:
                    yield _with_key(kv, key)
            more = page.more
            start = page.items[-1].key if page.items else None

    async def _revision(self, revision: int | None) -> int:
        """Return the store's revision, or `revision` if it can be read."""
        page = await self._inner.range(self._namespace.prefix, limit=1, revision=revision, keys_only=True)
        return page.revision

    def watch(self, prefix: str, *, start_revision: int | None = None, previous: bool = True) -> NamespacedWatch:
        check_prefix(prefix)
        runs = self._namespace.runs(prefix)
        stored = runs[0].stored if len(runs) == 1 else self._namespace.prefix
        watch = watching(self._inner, stored, start_revision=start_revision, previous=previous)
        return NamespacedWatch(watch, self._namespace, prefix)

    async def status(self) -> Status:
        status = await self._inner.status()
        details = {**status.details, "namespace": self._namespace.prefix}
        return msgspec.structs.replace(status, details=details)

    def lease_lateness(self, ttl: float) -> float:
        return self._inner.lease_lateness(ttl)

    # Writing

    async def put(self, key: str, value: bytes, *, lease: int | Lease | None = None) -> int:
        check_put(key, value)
        return await self._inner.put(self._namespace.stored(key), value, lease=lease)

    async def delete(self, key: str) -> bool:
        check_key(key)
        return await self._inner.delete(self._namespace.stored(key))

    async def delete_prefix(self, prefix: str) -> int:
        check_delete_prefix(prefix)
        result = await self.txn([], [DeletePrefix(prefix)])
        return int(result.responses[0])  # type: ignore[arg-type]

    async def txn(
        self, when: Sequence[Comparison], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TxnResult:
        check_txn(when, then, otherwise)
        stored = self._namespace.stored
        result = await self._inner.txn(
            [msgspec.structs.replace(comparison, key=stored(comparison.key)) for comparison in when],
            [inside for operation in then for inside in self._stored_operations(operation)],
            [inside for operation in otherwise for inside in self._stored_operations(operation)],
        )
        responses = iter(result.responses)
        branch = then if result.succeeded else otherwise
        return TxnResult(
            result.succeeded, result.revision, tuple(self._response(operation, responses) for operation in branch)
        )

    def _stored_operations(self, operation: Operation) -> tuple[Operation, ...]:
        if isinstance(operation, Put):
            return (Put(self._namespace.stored(operation.key), operation.value, operation.lease),)
        if isinstance(operation, Delete):
            return (Delete(self._namespace.stored(operation.key)),)
        if isinstance(operation, Get):
            return (Get(self._namespace.stored(operation.key)),)
        runs = self._namespace.runs(operation.prefix)
        if not all(run.pure for run in runs):
            raise Invalid(
                f"delete by prefix {operation.prefix!r}: in a test namespace it also matches other roots; use a longer"
                " prefix, or delete the keys one by one"
            )
        return tuple(DeletePrefix(run.stored) for run in runs)

    def _response(self, operation: Operation, responses: Iterator[Response]) -> Response:
        if isinstance(operation, DeletePrefix):
            counts = [int(next(responses)) for _ in self._namespace.runs(operation.prefix)]  # type: ignore[arg-type]
            return sum(counts)
        response = next(responses)
        return _with_key(response, operation.key) if isinstance(response, KeyValue) else response

    async def grant(self, ttl: float) -> Lease:
        return await self._inner.grant(ttl)

    async def time_left(self, lease: int) -> float:
        """Return the seconds left of a lease; 0.0 if the inner store cannot report it."""
        return await self._inner.time_left(lease) if isinstance(self._inner, TellsLeases) else 0.0

    async def compact(self, revision: int) -> None:
        await self._inner.compact(revision)


def maintained_store(store: Store) -> Maintained | None:
    """Return the store that the leader must compact, in a namespace or not; None: it discards history by itself."""
    inner = store._inner if isinstance(store, NamespacedStore) else store
    return inner if isinstance(inner, Maintained) else None


class NamespacedWatch:
    """A watch of a NamespacedStore."""

    def __init__(self, inner: Watch, namespace: Namespace, prefix: str) -> None:
        self._inner, self._namespace, self._prefix = inner, namespace, prefix

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._inner.__aexit__(kind, error, traceback)

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        while True:
            event = await anext(self._inner)
            key = self._namespace.production(event.kv.key)
            if key is not None and key.startswith(self._prefix):
                previous = None if event.previous is None else _with_key(event.previous, key)
                return Event(event.type, _with_key(event.kv, key), previous)


def _with_key(kv: KeyValue, key: str) -> KeyValue:
    return KeyValue(key, kv.value, kv.create_revision, kv.mod_revision, kv.version, kv.lease)


def _start(run: Run, after: str | None) -> str | None:
    """Return the stored key to read after in a run; empty: from its beginning; None: the run is before `after`."""
    after = max(after or "", run.above)
    if after < run.prefix or not after:
        return ""
    if not after.startswith(run.prefix):
        return None
    return run.stored + after[len(run.prefix) :]


def namespace_of(store: Store) -> Namespace:
    """Return the namespace of an open store."""
    return store.namespace if isinstance(store, NamespacedStore) else PRODUCTION


async def enter(
    store: Store, options: NamespaceOptions, *, clock: Clock, token: str | None = None
) -> tuple[Store, Namespace]:
    """Return the open `store` as seen from the namespace that the options name, cleaned first if they say so.

    Cleaning deletes the keys under `/CloudChamber/V0.1/Test/Standard/`, and nothing else.
    """
    namespace = choose(options, wall=clock.wall(), token=token or secrets.token_hex(3))
    if options.pre_clean_store:
        if namespace.name != STANDARD:  # NamespaceOptions refuses this; if it ever fails to, nothing may be deleted
            raise Invalid("PreCleanStore: only the standard test namespace can be cleaned")
        await store.delete_prefix(f"{TEST_ROOT}{STANDARD}/")
    if namespace.name is None:
        return store, namespace
    return NamespacedStore(store, namespace), namespace
