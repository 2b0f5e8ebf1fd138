"""Writes a batch of requests in one SQLite transaction, made durable by one fsync.

Runs in the committer's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import apsw
import msgspec

from hostler.drivers.store.sqlite.reader import Reader, checksum, end_of_prefix
from hostler.drivers.store.sqlite.schema import translate_error
from hostler.errors import Compacted, FutureRevision, LeaseGone
from hostler.ports.store import Delete, DeletePrefix, Get, Put, TxnResult, lease_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from hostler.drivers.store.committer import Request
    from hostler.drivers.store.local_store import HostTime
    from hostler.kit.clock import Clock
    from hostler.ports.store import Comparison, Operation, Response


class Transaction(msgspec.Struct, frozen=True, gc=False):
    """Compare, then apply operations."""

    when: Sequence[Comparison]
    then: Sequence[Operation]
    otherwise: Sequence[Operation]


class Grant(msgspec.Struct, frozen=True):
    """Create a lease."""

    id: int
    ttl: float


class KeepAlive(msgspec.Struct, frozen=True):
    """Renew a lease for another ttl."""

    id: int


class Revoke(msgspec.Struct, frozen=True):
    """End a lease."""

    id: int


class Compact(msgspec.Struct, frozen=True):
    """Allow history before a revision to be deleted."""

    revision: int


class Raise(msgspec.Struct, frozen=True):
    """Continue with revisions above this one, and allow history before it to be deleted."""

    revision: int


class Expire(msgspec.Struct, frozen=True):
    """End expired leases, as every batch does first."""


class Purge(msgspec.Struct, frozen=True):
    """Delete unreachable log rows, and deletions together with their keys."""

    rows: Sequence[int] = ()
    deleted: Sequence[tuple[int, str]] = ()
    purged: int = 0
    """Every row below this id has been examined."""


class Shrink(msgspec.Struct, frozen=True):
    """Release free pages to the file system."""

    pages: int


Work: TypeAlias = Put | Transaction | Grant | KeepAlive | Revoke | Compact | Raise | Expire | Purge | Shrink


class Change(NamedTuple):
    """A log row that a batch has added, as watches need it."""

    key: str
    value: bytes
    created: int
    version: int
    lease: int | None
    previous: int | None


class Committed(NamedTuple):
    """The outcome of a batch: the changes of each of its revisions."""

    revisions: list[tuple[int, list[Change]]]


class Writer:
    """Writes through one connection."""

    def __init__(self, path: Path, connection: apsw.Connection, clock: Clock, time: HostTime) -> None:
        self._path, self._connection, self._clock, self._time = path, connection, clock, time
        self._cursor: Any = connection.cursor()  # its rows have no types
        self._reader = Reader(path, connection)
        self._revision = 0
        self._row = 0
        self._total = 0
        self._at = 0
        self._changes: list[Change] = []

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def of_this_boot(self) -> bool:
        """Return whether the leases are on this boot's clock."""
        try:
            return bool(self._cursor.execute("SELECT boot FROM meta").fetchall()[0][0] == self._time.boot)
        except apsw.Error as error:
            raise translate_error(self._path, error) from error

    def adopt_boot(self) -> None:
        """Convert the leases of an earlier boot to this boot's clock."""
        execute = self._cursor.execute
        try:
            execute("BEGIN IMMEDIATE")
            try:
                if not self.of_this_boot():
                    now, wall = self._clock.now(), self._clock.wall()
                    left = "max(0.0, min(ttl, wall - ?1))"
                    execute(f"UPDATE lease SET at = ?2 + {left}, wall = ?1 + {left}", (wall, now))  # noqa: S608
                    execute("UPDATE meta SET boot = ?", (self._time.boot,))
            except BaseException:
                execute("ROLLBACK")
                raise
            execute("COMMIT")
        except apsw.Error as error:
            raise translate_error(self._path, error) from error

    def run(self, batch: Sequence[Request[Work]]) -> Committed:
        """Do the work of a batch and make it durable."""
        try:
            self._cursor.execute("BEGIN IMMEDIATE")
        except apsw.Error as error:
            raise translate_error(self._path, error) from error
        try:
            revisions = self._do(batch)
        except apsw.Error as error:
            self._roll_back()
            raise translate_error(self._path, error) from error
        except BaseException:
            self._roll_back()
            raise
        try:
            self._cursor.execute("COMMIT")
        except apsw.Error as error:
            self._roll_back()
            raise translate_error(self._path, error, committing=True) from error
        return Committed(revisions)

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            try:
                self._cursor.execute("ROLLBACK")
            except apsw.Error:
                return  # SQLite has already rolled back

    def _do(self, batch: Sequence[Request[Work]]) -> list[tuple[int, list[Change]]]:
        execute = self._cursor.execute
        started, purged = execute("SELECT revision, purged FROM meta").fetchall()[0]
        newest = execute("SELECT id, total, at FROM log ORDER BY id DESC LIMIT 1").fetchall()
        row, self._total, at = newest[0] if newest else (0, 0, 0)
        self._revision, self._changes, self._row = started, [], max(row, purged)
        self._at = max(at, int(self._clock.wall() * 1000))  # the search by time requires that it never goes back
        revisions: list[tuple[int, list[Change]]] = []
        self._expire(revisions)
        for request in batch:
            work = request.work
            try:
                if type(work) is Put:
                    self._check_leases((work,))
                    self._put(work)
                    request.result = self._revision + 1
                elif type(work) is Transaction:
                    request.result = self._transaction(work)
                else:
                    request.result = self._other(work)
            except (LeaseGone, Compacted, FutureRevision) as error:  # of this request only: it has changed nothing
                request.error = error
                continue
            self._seal(revisions)
        if self._revision != started:
            execute("UPDATE meta SET revision = ?", (self._revision,))
        return revisions

    def _seal(self, revisions: list[tuple[int, list[Change]]]) -> None:
        """Assign a revision to the changes since the last seal."""
        if self._changes:
            self._revision += 1
            revisions.append((self._revision, self._changes))
            self._changes = []

    def _transaction(self, work: Transaction) -> TxnResult:
        succeeded = all(comparison.holds(self._reader.get(comparison.key, None)) for comparison in work.when)
        branch = work.then if succeeded else work.otherwise
        self._check_leases(branch)
        responses: list[Response] = []
        for operation in branch:
            if isinstance(operation, Put):
                self._put(operation)
                responses.append(None)
            elif isinstance(operation, Delete):
                responses.append(bool(self._delete((operation.key,))))
            elif isinstance(operation, DeletePrefix):
                responses.append(self._delete(self._keys("key >= ? AND key < ? ORDER BY key", operation.prefix)))
            elif isinstance(operation, Get):
                responses.append(self._reader.get(operation.key, None))
        return TxnResult(succeeded, self._revision + bool(self._changes), tuple(responses))

    def _keys(self, condition: str, prefix: str) -> list[str]:
        query = f"SELECT key FROM live WHERE version > 0 AND {condition}"  # noqa: S608 - conditions are internal
        return [row[0] for row in self._cursor.execute(query, (prefix, end_of_prefix(prefix))).fetchall()]

    def _check_leases(self, operations: Iterable[Operation]) -> None:
        for operation in operations:
            if isinstance(operation, Put) and operation.lease is not None:
                self._lease(lease_id(operation.lease) or 0)

    def _lease(self, id_: int) -> float:
        rows = self._cursor.execute("SELECT ttl FROM lease WHERE id = ?", (id_,)).fetchall()
        if not rows:
            raise LeaseGone(f"lease {id_}: it expired or was revoked; grant a new one")
        return float(rows[0][0])

    def _put(self, operation: Put) -> None:
        execute = self._cursor.execute
        key = operation.key
        rows = execute("SELECT log, created, version FROM live WHERE key = ?", (key,)).fetchall()
        previous, created, version = rows[0] if rows else (None, 0, 0)
        if not version:
            created = self._revision + 1
        lease = None if operation.lease is None else lease_id(operation.lease)
        self._append(Change(key, operation.value, created, version + 1, lease, previous))
        if rows:
            execute(
                "UPDATE live SET log = ?, created = ?, version = ?, lease = ? WHERE key = ?",
                (self._row, created, version + 1, lease, key),
            )
        else:
            execute("INSERT INTO live VALUES (?, ?, ?, ?, ?)", (key, self._row, created, version + 1, lease))

    def _delete(self, keys: Iterable[str]) -> int:
        execute = self._cursor.execute
        deleted = 0
        for key in keys:
            rows = execute("SELECT log FROM live WHERE key = ? AND version > 0", (key,)).fetchall()
            if rows:
                self._append(Change(key, b"", 0, 0, None, rows[0][0]))
                execute(
                    "UPDATE live SET log = ?, created = 0, version = 0, lease = NULL WHERE key = ?", (self._row, key)
                )
                deleted += 1
        return deleted

    def _append(self, change: Change) -> None:
        key, value, created, version, lease, previous = change
        self._row += 1
        self._total += len(key) + len(value)
        self._cursor.execute(
            "INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                self._row,
                self._revision + 1,
                self._at,
                self._total,
                key,
                value,
                created,
                version,
                lease,
                previous,
                checksum(key, value),
            ),
        )
        self._changes.append(change)

    # Leases and maintenance

    def _other(self, work: Work) -> Any:
        if isinstance(work, Grant):
            return self._grant(work)
        if isinstance(work, KeepAlive):
            return self._keep_alive(work.id)
        if isinstance(work, Revoke):
            return self._revoke(work.id)
        if isinstance(work, Compact):
            return self._compact(work.revision)
        if isinstance(work, Raise):
            return self._raise(work.revision)
        if isinstance(work, Purge):
            return self._purge(work)
        if isinstance(work, Shrink):
            self._cursor.execute(f"PRAGMA incremental_vacuum({work.pages})").fetchall()
        return None

    def _grant(self, work: Grant) -> bool:
        if self._cursor.execute("SELECT 1 FROM lease WHERE id = ?", (work.id,)).fetchall():
            return False
        end = self._time.after(work.ttl)
        self._cursor.execute("INSERT INTO lease VALUES (?, ?, ?, ?)", (work.id, work.ttl, end.at, end.wall))
        return True

    def _keep_alive(self, id_: int) -> None:
        end = self._time.after(self._lease(id_))
        self._cursor.execute("UPDATE lease SET at = ?, wall = ? WHERE id = ?", (end.at, end.wall, id_))

    def _revoke(self, id_: int) -> None:
        keys = [row[0] for row in self._cursor.execute("SELECT key FROM live WHERE lease = ? ORDER BY key", (id_,))]
        self._delete(keys)
        self._cursor.execute("DELETE FROM lease WHERE id = ?", (id_,))

    def _expire(self, revisions: list[tuple[int, list[Change]]]) -> None:
        """End every expired lease, each in a separate transaction, before any other work."""
        due = self._cursor.execute("SELECT id FROM lease WHERE at <= ? ORDER BY at", (self._time.now(),)).fetchall()
        for (id_,) in due:
            self._revoke(id_)
            self._seal(revisions)

    def _compact(self, revision: int) -> None:
        if revision > self._revision:
            raise FutureRevision(f"compaction to revision {revision}: the store is at {self._revision}")
        compacted = self._cursor.execute("SELECT compacted FROM meta").fetchall()[0][0]
        if revision <= compacted:
            raise Compacted(compacted)
        self._cursor.execute("UPDATE meta SET compacted = ?", (revision,))

    def _raise(self, revision: int) -> None:
        if revision > self._revision:
            self._revision = revision
            self._cursor.execute("UPDATE meta SET compacted = ?", (revision,))

    def _purge(self, work: Purge) -> None:
        execute = self._cursor.execute
        self._cursor.executemany("DELETE FROM log WHERE id = ?", ((row,) for row in work.rows))
        for row, key in work.deleted:
            execute("DELETE FROM live WHERE key = ? AND log = ?", (key, row))
            execute("DELETE FROM log WHERE id = ?", (row,))
        if work.purged:
            execute("UPDATE meta SET purged = max(purged, ?)", (work.purged,))
