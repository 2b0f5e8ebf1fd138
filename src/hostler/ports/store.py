"""The store: all state of Hostler, in one place, with the semantics of etcd v3.

Every committed transaction that changes something gets one revision, one higher than the last. Every verb has a
deadline (the store's `timeout`) and ends in one of these ways:

    it returns        the result has happened, durably
    Refused           the request is wrong (`Invalid`, `TooLarge`, `FutureRevision`, `LeaseGone`, `Closed`, `Damaged`)
    Compacted         the history it needs is gone
    Unavailable       nothing was written; try later
    Uncertain         only for verbs that write: the answer was lost, it may have been written; read before you act

A driver never repeats a write whose outcome it does not know.
"""

from __future__ import annotations

import functools
import inspect
import math
from typing import TYPE_CHECKING, Literal, Protocol, Self, TypeAlias, runtime_checkable

import msgspec

from hostler.errors import Invalid, TooLarge

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
    from types import TracebackType

MAX_REQUEST_BYTES = 1_572_864
"""Maximum size of one request: keys and values plus `OPERATION_OVERHEAD` per operation (etcd's 1.5 MiB)."""
OPERATION_OVERHEAD = 64
MAX_OPERATIONS = 128
"""Maximum number of comparisons, operations, or operations of the other branch, in one transaction (etcd's default)."""
PIECE_BYTES = MAX_REQUEST_BYTES // 2
"""Size of one request of a large write that is split; the rest of the request is for accompanying operations."""
MAX_TTL = 9_000_000_000.0


class KeyValue(msgspec.Struct, frozen=True):
    """A key as of some revision. `version` counts the puts since it was created, from 1."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int | None = None


class Event(msgspec.Struct, frozen=True):
    """One change. For a delete, `kv` has the key and the revision of the deletion, version 0 and no value.

    `previous` is the key before the change; None if it did not exist or was compacted away.
    """

    type: Literal["put", "delete"]
    kv: KeyValue
    previous: KeyValue | None = None


class Page(msgspec.Struct, frozen=True):
    """A part of a range, all of it as of `revision`; `more` if keys follow the last one.

    The next page: `range(prefix, after=page.items[-1].key, revision=page.revision)`.
    """

    items: tuple[KeyValue, ...]
    revision: int
    more: bool


class Comparison(msgspec.Struct, frozen=True):
    """One condition of a transaction, written as `Version(key) == 0` and similar.

    An absent key has version, create revision and mod revision 0; no comparison of its value holds.
    """

    target: Literal["version", "create", "mod", "value"]
    key: str
    operator: Literal["==", "!=", "<", ">"]
    operand: int | bytes

    def holds(self, kv: KeyValue | None) -> bool:
        """Return whether the condition is true of `kv`."""
        if self.target == "value":
            if kv is None:
                return False
            return _compare(self.operator, kv.value, self.operand)
        if kv is None:
            actual = 0
        elif self.target == "version":
            actual = kv.version
        elif self.target == "create":
            actual = kv.create_revision
        else:
            actual = kv.mod_revision
        return _compare(self.operator, actual, self.operand)


def _compare(operator: str, actual: int | bytes, operand: int | bytes) -> bool:
    if operator == "==":
        return actual == operand
    if operator == "!=":
        return actual != operand
    if operator == "<":
        return actual < operand  # type: ignore[operator]
    return actual > operand  # type: ignore[operator]


class _Operand:
    _target: Literal["version", "create", "mod", "value"]
    __slots__ = ("key",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, key: str) -> None:
        self.key = key

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key!r})"

    def __bool__(self) -> bool:
        raise TypeError(f"{self!r} is not a condition by itself; compare it: {self!r} == …")


class _Number(_Operand):
    __slots__ = ()
    __hash__ = None

    def __eq__(self, other: int) -> Comparison:  # type: ignore[override]
        return Comparison(self._target, self.key, "==", other)

    def __ne__(self, other: int) -> Comparison:  # type: ignore[override]
        return Comparison(self._target, self.key, "!=", other)

    def __lt__(self, other: int) -> Comparison:
        return Comparison(self._target, self.key, "<", other)

    def __gt__(self, other: int) -> Comparison:
        return Comparison(self._target, self.key, ">", other)


class Version(_Number):
    """Number of puts of the key since it was created; 0 if it is absent."""

    __slots__ = ()
    _target = "version"


class CreateRevision(_Number):
    """The revision in which the key was created; 0 if it is absent."""

    __slots__ = ()
    _target = "create"


class ModRevision(_Number):
    """The revision in which the key was last put; 0 if it is absent."""

    __slots__ = ()
    _target = "mod"


class Value(_Operand):
    """The key's value. Values compare as bytes; no comparison holds for an absent key."""

    __slots__ = ()
    __hash__ = None
    _target = "value"

    def __eq__(self, other: bytes) -> Comparison:  # type: ignore[override]
        return Comparison("value", self.key, "==", other)

    def __ne__(self, other: bytes) -> Comparison:  # type: ignore[override]
        return Comparison("value", self.key, "!=", other)

    def __lt__(self, other: bytes) -> Comparison:
        return Comparison("value", self.key, "<", other)

    def __gt__(self, other: bytes) -> Comparison:
        return Comparison("value", self.key, ">", other)


class Lease(Protocol):
    """A lifetime that keys can be attached to: when it ends, they are deleted, in one transaction."""

    @property
    def id(self) -> int:
        """A positive number that no other lease of the store has."""

    @property
    def ttl(self) -> float:
        """The granted TTL: at least the requested one."""

    async def keep_alive(self) -> None:
        """Renew the lease for another `ttl` from now. LeaseGone: it ended before."""

    async def revoke(self) -> None:
        """End it now and delete the attached keys; nothing happens if it has ended already."""

    async def remaining(self) -> float:
        """Return the seconds until it ends; 0.0 once it has."""


class Put(msgspec.Struct, frozen=True):
    """Set a key. It belongs to `lease` from now on, and to no other; without one it stays until deleted."""

    key: str
    value: bytes
    lease: int | Lease | None = None


class Delete(msgspec.Struct, frozen=True):
    """Delete a key. The response is whether it existed."""

    key: str


class DeletePrefix(msgspec.Struct, frozen=True):
    """Delete every key that starts with `prefix`, which may not be empty. The response is how many there were."""

    prefix: str


class Get(msgspec.Struct, frozen=True):
    """Read a key. The response is a KeyValue, or None; it sees what earlier operations of the transaction did."""

    key: str


Operation: TypeAlias = Put | Delete | DeletePrefix | Get
Response: TypeAlias = KeyValue | int | bool | None


class TxnResult(msgspec.Struct, frozen=True):
    """The result of a transaction: which branch ran, the store's revision after it, one response per operation.

    The response to a Put is None.
    """

    succeeded: bool
    revision: int
    responses: tuple[Response, ...]


class Status(msgspec.Struct, frozen=True):
    """State of the store, for people and for health checks."""

    engine: str
    version: str
    revision: int
    compact_revision: int
    size_bytes: int
    details: dict[str, str]
    quota_bytes: int | None = None
    """The size at which the store rejects writes; None: it has no limit of its own."""
    in_use_bytes: int | None = None
    """The part of `size_bytes` that holds records and history; the rest is reused. None: not known."""
    alarms: tuple[str, ...] = ()
    """Active alarms: `NOSPACE` (full), `CORRUPT`."""

    @property
    def fraction(self) -> float:
        """How full it is, from 0 to 1; 0.0 without a quota."""
        if FULL in self.alarms:
            return 1.0
        return self.size_bytes / self.quota_bytes if self.quota_bytes else 0.0


FULL = "NOSPACE"
"""The alarm of a store that rejects writes until it is repaired."""


class MemberStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One member of a store that runs on several servers."""

    name: str
    """`host:port`."""
    answers: bool
    why: str = ""
    """Why the member does not answer, as far as it is known."""
    advice: str = ""
    """What to do about it; empty: start it."""
    size_bytes: int = 0
    leads: bool = False


@runtime_checkable
class Watch(Protocol):
    """Changes under one prefix, in order, each once, the events of one transaction together.

    From entering it on, every later change is delivered. It ends by an error only: `Compacted` or `Lagged` (list again,
    then watch), `Closed` when the store is closed. Losing the connection does not end it: it resumes where it was.
    """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def __aiter__(self) -> AsyncIterator[Event]: ...

    async def __anext__(self) -> Event: ...


@runtime_checkable
class Store(Protocol):
    """The store. An async context manager: opened on entering, closed on leaving."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    async def get(self, key: str, *, revision: int | None = None) -> KeyValue | None:
        """Return the key as it is now (linearizable), or as it was at `revision`."""

    async def range(
        self,
        prefix: str,
        *,
        after: str | None = None,
        limit: int | None = None,
        revision: int | None = None,
        keys_only: bool = False,
    ) -> Page:
        """Return keys that start with `prefix` and follow `after`, in order; `keys_only` leaves the values empty."""

    async def put(self, key: str, value: bytes, *, lease: int | Lease | None = None) -> int:
        """Set the key and return the revision of the change."""

    async def delete(self, key: str) -> bool:
        """Delete the key and return whether it existed."""

    async def delete_prefix(self, prefix: str) -> int:
        """Delete every key that starts with `prefix`, in one transaction, and return how many there were."""

    async def txn(
        self, when: Sequence[Comparison], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TxnResult:
        """If every comparison holds, do `then`, else `otherwise`; all of it in one atomic step."""

    async def grant(self, ttl: float) -> Lease:
        """Return a new lease of at least `ttl` seconds."""

    def watch(self, prefix: str, *, start_revision: int | None = None, previous: bool = True) -> Watch:
        """Watch changes under `prefix` from `start_revision` on; without it, from the moment of entering.

        With `previous=False`, events may omit the previous value, which costs some engines more than the write.
        """

    async def compact(self, revision: int) -> None:
        """Discard what was overwritten or deleted before `revision`. Compacted: that has happened already."""

    async def status(self) -> Status:
        """Return the state of the store."""

    def lease_lateness(self, ttl: float) -> float:
        """Return how many seconds after its end a lease of `ttl` may at most still exist. It never ends early."""

    async def aclose(self) -> None:
        """Release everything. Running verbs and watches end with Closed, writes that may be done with Uncertain.

        Closing twice is fine.
        """


@runtime_checkable
class TellsLeases(Protocol):
    """Optional ability of a store, for people: read a lease that another process was granted."""

    async def time_left(self, lease: int) -> float:
        """Return the seconds until the lease ends; 0.0 once it has. May be up to a second too low."""


@runtime_checkable
class RaisesRevision(Protocol):
    """Optional ability of a store, for a restore: revisions that were assigned before are not assigned again."""

    async def raise_revision(self, revision: int) -> None:
        """Make `revision` the newest one, and discard the history before it. Nothing happens if it is not higher.

        No other process may have the store open.
        """


@runtime_checkable
class Maintained(Protocol):
    """Optional ability: a store that keeps all history until it is compacted, and that can become full."""

    def oldest_needed(self) -> int | None:
        """Return the first revision that a watch of this process would request after reconnecting; None: no watch."""

    async def members(self) -> tuple[MemberStatus, ...]:
        """Return every member, including those that do not answer. Never raises for one that does not."""

    async def defragment(self, member: str) -> None:
        """Release the free space of one member; that member answers nothing in the meantime. It may take minutes."""

    async def disarm(self) -> None:
        """Clear the alarm `FULL` of every member; it comes back with the next write if no space was freed."""


def watching(store: Store, prefix: str, *, start_revision: int | None = None, previous: bool) -> Watch:
    """Call `Store.watch`; a third-party store without the parameter `previous` always delivers previous values."""
    watch = store.watch
    if previous or not _takes_previous(getattr(watch, "__func__", watch)):
        return watch(prefix, start_revision=start_revision)
    return watch(prefix, start_revision=start_revision, previous=False)


@functools.lru_cache(maxsize=64)
def _takes_previous(watch: Callable[..., Watch]) -> bool:
    return "previous" in inspect.signature(watch).parameters


# Every driver makes these checks first, so that all drivers refuse the same requests.


def check_key(key: str, *, what: str = "key") -> int:
    """Return the key's size in bytes. Invalid: it is not a text, is empty, or cannot be encoded."""
    if not isinstance(key, str):
        raise Invalid(f"{what} {key!r}: must be a str, not {type(key).__name__}")
    if not key:
        raise Invalid(f"{what}: must not be empty")
    return _encoded_length(key, what)


def check_prefix(prefix: str, *, what: str = "prefix") -> int:
    """Return the prefix's size in bytes; it may be empty."""
    if not isinstance(prefix, str):
        raise Invalid(f"{what} {prefix!r}: must be a str, not {type(prefix).__name__}")
    return _encoded_length(prefix, what)


def _encoded_length(text: str, what: str) -> int:
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise Invalid(f"{what} {text!r}: not encodable as UTF-8 ({error.reason} at {error.start})") from None


def check_revision(revision: int | None, *, optional: bool = True) -> None:
    """Raise Invalid unless it is a whole number above 0."""
    if revision is None and optional:
        return
    if isinstance(revision, bool) or not isinstance(revision, int) or revision <= 0:
        raise Invalid(f"revision {revision!r}: must be a whole number above 0")


def check_limit(limit: int | None) -> None:
    """Raise Invalid unless it is a whole number above 0."""
    if limit is None:
        return
    if isinstance(limit, bool) or not isinstance(limit, int) or limit <= 0:
        raise Invalid(f"limit {limit!r}: must be a whole number above 0, or None for all")


def check_ttl(ttl: float) -> float:
    """Return the TTL as a float. Invalid: not a finite number above 0 and at most `MAX_TTL`."""
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not math.isfinite(ttl):
        raise Invalid(f"ttl {ttl!r}: must be a finite number of seconds")
    if not 0 < ttl <= MAX_TTL:
        raise Invalid(f"ttl {ttl!r}: must be above 0 and at most {MAX_TTL:.0f} seconds")
    return float(ttl)


def lease_id(lease: int | Lease | None) -> int | None:
    """Return the id of a lease that is given as a Lease or as its id."""
    if lease is None:
        return None
    number = lease if isinstance(lease, int) else getattr(lease, "id", None)
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number < 2**63:
        raise Invalid(f"lease {lease!r}: must be a Lease, its id, or None")
    return number


def check_range(prefix: str, after: str | None, limit: int | None, revision: int | None) -> None:
    """Raise Invalid for arguments that are not a valid range."""
    check_prefix(prefix)
    check_limit(limit)
    check_revision(revision)
    if after is not None:
        check_prefix(after, what="after")


def check_put(key: str, value: bytes) -> None:
    """Raise Invalid or TooLarge for a put that is not valid."""
    size = check_key(key) + OPERATION_OVERHEAD
    if not isinstance(value, bytes):
        raise Invalid(f"value of {key!r}: must be bytes, not {type(value).__name__}")
    size += len(value)
    if size > MAX_REQUEST_BYTES:
        raise _too_large(size)


def check_txn(when: Sequence[Comparison], then: Sequence[Operation], otherwise: Sequence[Operation]) -> None:
    """Raise Invalid or TooLarge for a transaction that is not valid.

    As in etcd, one branch may not put a key twice, nor put a key that it also deletes.
    """
    size = 0
    for name, part in (("when", when), ("then", then), ("otherwise", otherwise)):
        if len(part) > MAX_OPERATIONS:
            raise TooLarge(f"transaction: {len(part)} entries in {name!r}, at most {MAX_OPERATIONS} are allowed")
    for comparison in when:
        size += _check_comparison(comparison)
    for branch in (then, otherwise):
        size += _check_branch(branch)
    if size > MAX_REQUEST_BYTES:
        raise _too_large(size)


def size_of(when: Sequence[Comparison], then: Sequence[Operation]) -> int:
    """Return the bytes of a part of a transaction, as `MAX_REQUEST_BYTES` counts them. Invalid: not valid."""
    return sum(map(_check_comparison, when)) + _check_branch(then)


def operation_size(operation: Operation) -> int:
    """Return the bytes that the operation takes of a request."""
    key = operation.prefix if isinstance(operation, DeletePrefix) else operation.key
    return OPERATION_OVERHEAD + len(key.encode()) + (len(operation.value) if isinstance(operation, Put) else 0)


def pieces(operations: Iterable[Operation], *, most: int = MAX_OPERATIONS) -> Iterator[list[Operation]]:
    """Split operations, in order, so that each piece fits into a request; one that is too large is a piece alone."""
    piece: list[Operation] = []
    total = 0
    for operation in operations:
        size = operation_size(operation)
        if piece and (len(piece) == most or total + size > PIECE_BYTES):
            yield piece
            piece, total = [], 0
        piece.append(operation)
        total += size
    if piece:
        yield piece


def keys_read(operations: Sequence[Operation]) -> list[str]:
    """Return the keys of operations that only read; empty if one of them writes. Reads need not wait for writers."""
    keys = []
    for operation in operations:
        if not isinstance(operation, Get):
            return []
        keys.append(operation.key)
    return keys


def _check_comparison(comparison: Comparison) -> int:
    if not isinstance(comparison, Comparison):
        raise Invalid(f"transaction: {comparison!r} is not a comparison; write for example Version(key) == 0")
    key, operand = comparison.key, comparison.operand
    size = OPERATION_OVERHEAD + (len(key) if type(key) is str and key and key.isascii() else check_key(key))
    if comparison.target == "value":
        if not isinstance(operand, bytes):
            raise Invalid(f"comparison of the value of {comparison.key!r}: must be with bytes")
        return size + len(operand)
    if type(operand) is int and 0 <= operand < 2**63:
        return size
    if isinstance(comparison.operand, bool) or not isinstance(comparison.operand, int):
        raise Invalid(f"comparison of {comparison.key!r}: must be with a whole number")
    if not -(2**63) <= comparison.operand < 2**63:
        raise Invalid(f"comparison of {comparison.key!r}: {comparison.operand} does not fit into 64 bits")
    return size


def _check_branch(branch: Sequence[Operation]) -> int:
    size = 0
    puts: set[str] = set()
    deletes: set[str] = set()
    prefixes: list[str] = []
    for operation in branch:
        size += OPERATION_OVERHEAD
        if isinstance(operation, Put):
            key, value = operation.key, operation.value
            # Fast path for nearly all keys; all others, and invalid ones, take the full check.
            size += len(key) if type(key) is str and key and key.isascii() else check_key(key)
            if not isinstance(value, bytes):
                raise Invalid(f"value of {key!r}: must be bytes, not {type(value).__name__}")
            size += len(value)
            if operation.lease is not None:
                lease_id(operation.lease)
            if key in puts:
                raise Invalid(f"transaction: two operations put {key!r}; one transaction writes a key once")
            puts.add(key)
        elif isinstance(operation, Delete):
            size += check_key(operation.key)
            deletes.add(operation.key)
        elif isinstance(operation, DeletePrefix):
            size += check_delete_prefix(operation.prefix)
            prefixes.append(operation.prefix)
        elif isinstance(operation, Get):
            size += check_key(operation.key)
        else:
            raise Invalid(f"transaction: {operation!r} is not an operation (Put, Delete, DeletePrefix, Get)")
    for key in puts if deletes or prefixes else ():
        if key in deletes or any(key.startswith(prefix) for prefix in prefixes):
            raise Invalid(f"transaction: {key!r} is both put and deleted; one transaction writes a key once")
    return size


def check_delete_prefix(prefix: str) -> int:
    """Return the prefix's size. Invalid: it is empty, which would delete the whole store."""
    size = check_prefix(prefix)
    if not prefix:
        raise Invalid("delete by prefix: an empty prefix would delete every key of the store; name a prefix")
    return size


def _too_large(size: int) -> TooLarge:
    return TooLarge(f"request: {size} bytes, at most {MAX_REQUEST_BYTES} fit into one; split it")
