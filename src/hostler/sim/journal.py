"""Journal of all external inputs to a simulated world, each with its place, and the file format of saved simulations.

A world is determined by its scenario, its seed and its inputs. So a saved simulation consists of these three, the place
that the world had reached, and a digest of its state there. Resuming replays all inputs and compares the digest
(decision 39).

The file is text: one line for the simulation, one line for each input, and the SHA-256 of these lines.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import msgspec

from hostler.errors import Damaged, Invalid, NotFound, Refused, Unavailable
from hostler.kit.fsync import write_whole
from hostler.model.sim_api import HardwareCommand, Mode  # noqa: TC001 - msgspec reads them
from hostler.ports.store import Comparison, Delete, DeletePrefix, Get, Put, lease_id
from hostler.sim.time_control import EventPosition  # noqa: TC001 - msgspec reads it

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from hostler.drivers.store.memory import AsideStore
    from hostler.ports.store import Lease, Operation, TxnResult

FORMAT = "hostler simulation"
VERSION = 1
MOST = 64 * 1024 * 1024
"""Most bytes of journaled inputs. A simulation with more inputs continues, but can no longer be saved."""
LARGEST = MOST + 16 * 1024 * 1024
"""Most bytes of a file."""


class Op(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One operation of a transaction."""

    op: Literal["put", "delete", "delete_prefix", "get"]
    key: str
    value: bytes = b""
    lease: int = 0

    def operation(self) -> Operation:
        """Convert to an operation of the store port."""
        match self.op:
            case "put":
                return Put(self.key, self.value, self.lease or None)
            case "delete":
                return Delete(self.key)
            case "delete_prefix":
                return DeletePrefix(self.key)
            case "get":
                return Get(self.key)


class Txn(msgspec.Struct, tag="txn", frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A store transaction from the server outside the world."""

    then: tuple[Op, ...]
    when: tuple[Comparison, ...] = ()
    otherwise: tuple[Op, ...] = ()

    def done(self, store: AsideStore) -> Any:
        """Commit the transaction and return the result."""
        then, otherwise = ([op.operation() for op in some] for some in (self.then, self.otherwise))
        return store.commit(self.when, then, otherwise)


class Grant(msgspec.Struct, tag="grant", frozen=True, forbid_unknown_fields=True):
    """Grant a lease."""

    ttl: float

    def done(self, store: AsideStore) -> Any:
        return store.grant(self.ttl)


class KeepAlive(msgspec.Struct, tag="keep_alive", frozen=True, forbid_unknown_fields=True):
    """Renew a lease."""

    lease: int

    def done(self, store: AsideStore) -> Any:
        store.keep_alive(self.lease)


class Revoke(msgspec.Struct, tag="revoke", frozen=True, forbid_unknown_fields=True):
    """Revoke a lease."""

    lease: int

    def done(self, store: AsideStore) -> Any:
        store.revoke(self.lease)


class Compact(msgspec.Struct, tag="compact", frozen=True, forbid_unknown_fields=True):
    """Compact the history of the store."""

    revision: int

    def done(self, store: AsideStore) -> Any:
        store.compact(self.revision)


class Inject(msgspec.Struct, tag="inject", frozen=True, forbid_unknown_fields=True):
    """Inject a fault, given as scenarios write it."""

    fault: dict[str, Any]


class Lift(msgspec.Struct, tag="lift", frozen=True, forbid_unknown_fields=True):
    """Lift a fault."""

    id: str


class Command(msgspec.Struct, tag="command", frozen=True, forbid_unknown_fields=True):
    """Switch hardware."""

    command: HardwareCommand


class Repaired(msgspec.Struct, tag="repair", frozen=True, forbid_unknown_fields=True):
    """Perform a proposed repair."""

    id: str


class AutoRepair(msgspec.Struct, tag="auto_repair", frozen=True, forbid_unknown_fields=True):
    """Turn automatic repair on or off."""

    automatic: bool


class Begin(msgspec.Struct, tag="begin", frozen=True, forbid_unknown_fields=True):
    """Start the timeline."""


StoreAct: TypeAlias = Txn | Grant | KeepAlive | Revoke | Compact
WorldAct: TypeAlias = Inject | Lift | Command | Repaired | AutoRepair | Begin
Act: TypeAlias = StoreAct | WorldAct


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One input and the place at which it entered the world."""

    place: EventPosition
    act: Txn | Grant | KeepAlive | Revoke | Compact | Inject | Lift | Command | Repaired | AutoRepair | Begin


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """First line of a saved simulation: everything except the inputs."""

    format: str
    version: int
    release: str
    """The release of Hostler that wrote the file. Another release may behave differently and then cannot resume it."""
    scenario: str
    """The scenario file, with the inventory included."""
    seed: int
    mode: Mode
    rate: float | None
    epoch: int
    place: EventPosition
    entries: int
    digest: str


class _End(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sha256: str


class Saved(msgspec.Struct, frozen=True):
    """A saved simulation."""

    header: Header
    entries: tuple[Entry, ...]


class Journal:
    """All inputs so far, as lines. Only the world's thread uses it."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self._size = 0

    @property
    def full(self) -> bool:
        """Whether the inputs are larger than a file may hold."""
        return self._size > MOST

    def add(self, place: EventPosition, act: Act) -> None:
        """Record an input that is about to be applied."""
        if self._size > MOST:
            return
        line = msgspec.json.encode(Entry(place, act))
        self._size += len(line) + 1
        self.lines.append(line)
        if self.full:
            self.lines.clear()


class JournaledStore:
    """The world's store for the server outside: reads change nothing in the world, every write is journaled first."""

    def __init__(self, store: AsideStore, perform: Callable[[StoreAct], Any]) -> None:
        self._store, self._perform = store, perform
        self.get, self.range, self.watch, self.status = store.get, store.range, store.watch, store.status
        self.lease_lateness, self.time_left = store.lease_lateness, store.time_left

    async def put(self, key: str, value: bytes, *, lease: int | Lease | None = None) -> int:
        return int(self._perform(Txn(_ops([Put(key, value, lease)]))).revision)

    async def delete(self, key: str) -> bool:
        return bool(self._perform(Txn(_ops([Delete(key)]))).responses[0])

    async def delete_prefix(self, prefix: str) -> int:
        return int(self._perform(Txn(_ops([DeletePrefix(prefix)]))).responses[0])

    async def txn(
        self, when: Sequence[Comparison], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TxnResult:
        result: TxnResult = self._perform(Txn(_ops(then), tuple(when), _ops(otherwise)))
        return result

    async def compact(self, revision: int) -> None:
        self._perform(Compact(revision))

    async def grant(self, ttl: float) -> JournaledLease:
        return JournaledLease(self._store, self._perform, self._perform(Grant(ttl)).id, ttl)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Do nothing: the world owns the store."""

    async def aclose(self) -> None:
        """Do nothing: the world owns the store."""


class JournaledLease:
    """A lease of a JournaledStore."""

    def __init__(self, store: AsideStore, perform: Callable[[StoreAct], Any], id_: int, ttl: float) -> None:
        self._store, self._perform, self.id, self.ttl = store, perform, id_, ttl

    async def keep_alive(self) -> None:
        self._perform(KeepAlive(self.id))

    async def revoke(self) -> None:
        self._perform(Revoke(self.id))

    async def remaining(self) -> float:
        return await self._store.time_left(self.id)


def _ops(operations: Sequence[Operation]) -> tuple[Op, ...]:
    return tuple(map(_op, operations))


def _op(operation: Operation) -> Op:
    if isinstance(operation, Put):
        return Op("put", operation.key, operation.value, lease_id(operation.lease) or 0)
    if isinstance(operation, DeletePrefix):
        return Op("delete_prefix", operation.prefix)
    return Op("delete" if isinstance(operation, Delete) else "get", operation.key)


# File format


def saved_bytes(header: Header, lines: Sequence[bytes]) -> bytes:
    """Return the content of the file of a simulation."""
    text = b"".join(line + b"\n" for line in (msgspec.json.encode(header), *lines))
    return text + msgspec.json.encode(_End(hashlib.sha256(text).hexdigest())) + b"\n"


def read(data: bytes, name: str) -> Saved:
    """Parse the content of a file. Invalid: not a saved simulation. Damaged: incomplete or altered."""
    if len(data) > LARGEST:
        raise Invalid(f"{name}: larger than {LARGEST // 1024 // 1024} MiB; not a saved simulation")
    lines = data.split(b"\n")
    try:
        kind = msgspec.json.decode(lines[0])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        kind = None
    if not isinstance(kind, dict) or kind.get("format") != FORMAT:
        raise Invalid(f"{name}: not a saved simulation; give a file that hostler sim save wrote")
    if kind.get("version") != VERSION:
        raise Refused(
            f"{name}: format version {kind.get('version')!r}; this Hostler reads version {VERSION};"
            f" use Hostler {kind.get('release')!r}"
        )
    try:
        end = msgspec.json.decode(lines[-2] if len(lines) > 2 else b"", type=_End)
    except msgspec.DecodeError:
        raise Damaged(f"{name}: the end of the file is missing, the file is damaged; use another copy") from None
    if lines[-1] or hashlib.sha256(data[: -len(lines[-2]) - 1]).hexdigest() != end.sha256:
        raise Damaged(f"{name}: checksum mismatch, the file is damaged; use another copy")
    try:
        header = msgspec.json.decode(lines[0], type=Header)
        entries = tuple(msgspec.json.decode(line, type=Entry) for line in lines[1:-2])
    except msgspec.DecodeError as error:
        raise Damaged(f"{name}: {error}; the file is damaged; use another copy") from None
    if len(entries) != header.entries:
        raise Damaged(f"{name}: {len(entries)} entries instead of {header.entries}; use another copy")
    return Saved(header, entries)


def load(path: Path) -> Saved:
    """Read a saved simulation from a file. NotFound, Invalid, Damaged or Refused: it cannot be resumed."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise NotFound(f"{path}: cannot be read: {error.strerror}; check the path") from None
    return read(data, str(path))


def save(path: Path, data: bytes) -> None:
    """Write a saved simulation to a file atomically. Unavailable: the old content is unchanged."""
    try:
        write_whole(path, data)
    except OSError as error:
        raise Unavailable(f"{path}: cannot be written: {error.strerror}; the old content is unchanged") from None
