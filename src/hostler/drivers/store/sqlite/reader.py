"""Reads keys now and in the past, ranges, history. Synchronous; one Reader per connection, one thread at a time."""

from __future__ import annotations

from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias
from zlib import crc32

import apsw

from hostler.drivers.store.mvcc import without_value
from hostler.drivers.store.sqlite.schema import translate_error
from hostler.errors import Compacted, Damaged, FutureRevision
from hostler.ports.store import Event, KeyValue, Page

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

Row: TypeAlias = tuple[Any, ...]

_COLUMNS = "log.key, log.value, log.created, log.revision, log.version, log.lease, log.checksum, log.previous"
_GET = f"SELECT {_COLUMNS} FROM live JOIN log ON log.id = live.log WHERE live.key = ? AND live.version > 0"  # noqa: S608
_ROW = f"SELECT {_COLUMNS} FROM log WHERE id = ?"  # noqa: S608
_NOW = {  # by whether the first bound is excluded, and whether values are
    (follows, keys_only): f"SELECT {_COLUMNS.replace('log.value', 'NULL') if keys_only else _COLUMNS}"  # noqa: S608
    f" FROM live JOIN log ON log.id = live.log WHERE live.key {'>' if follows else '>='} ? AND live.key < ?"
    " AND live.version > 0 ORDER BY live.key LIMIT ?"
    for follows in (False, True)
    for keys_only in (False, True)
}
_THEN = {
    follows: f"SELECT log FROM live WHERE key {'>' if follows else '>='} ? AND key < ? ORDER BY key"  # noqa: S608
    for follows in (False, True)
}
_SPAN = f"SELECT {_COLUMNS} FROM log WHERE id >= ? AND id < ? AND key >= ? AND key < ? ORDER BY id"  # noqa: S608
_META = "SELECT revision, compacted FROM meta"
_MOST_AT_ONCE = 8
_NEWEST = "SELECT NULL, NULL, 0, revision, 0, NULL, 0, NULL FROM meta"
_SEVERAL = [  # the newest revision as a row without a key, and the keys; all of one instant
    " UNION ALL ".join((_NEWEST, _GET.replace("live.key = ?", f"live.key IN ({', '.join('?' * number)})")))
    for number in range(_MOST_AT_ONCE + 1)
]

BEYOND_ALL_KEYS = b"\xff"
"""A blob, which SQLite sorts after every text."""
_SCAN = 2_000
"""Log rows examined in one step of reading history."""


def checksum(key: str, value: bytes) -> int:
    """Return the checksum that guards a row against silent damage."""
    return crc32(value, crc32(key.encode()))


def end_of_prefix(prefix: str) -> str | bytes:
    """Return the first text after everything that starts with `prefix`."""
    for at in range(len(prefix) - 1, -1, -1):
        following = ord(prefix[at]) + 1
        if following == 0xD800:  # surrogates are not characters
            following = 0xE000
        if following <= 0x10FFFF:
            return prefix[:at] + chr(following)
    return BEYOND_ALL_KEYS


class Reader:
    """Reads through one connection."""

    def __init__(self, path: Path, connection: apsw.Connection) -> None:
        self._path = path
        self._connection = connection
        self._cursor: Any = connection.cursor()  # its rows have no types

    def interrupt(self) -> None:
        """Abort a read in another thread, which then raises Closed."""
        self._connection.interrupt()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def data_version(self) -> int:
        """Return a number that changes whenever another connection has committed."""
        with self._translating():
            return int(self._connection.pragma("data_version"))

    def meta(self) -> tuple[int, int]:
        """Return the newest revision and the compacted one."""
        with self._translating():
            revision, compacted = self._cursor.execute(_META).fetchall()[0]
            return revision, compacted

    def get(self, key: str, revision: int | None) -> KeyValue | None:
        """Return the key now or at `revision`."""
        if revision is None:
            try:  # not _translating(): this is the hottest line of all
                rows = self._cursor.execute(_GET, (key,)).fetchall()
            except apsw.Error as error:
                raise translate_error(self._path, error) from error
            return self._built(rows[0]) if rows else None
        with self._snapshot(revision):
            newest = self._cursor.execute("SELECT log FROM live WHERE key = ?", (key,)).fetchall()
            return self._walk(newest[0][0], revision) if newest else None

    def several(self, keys: Sequence[str]) -> tuple[dict[str, KeyValue], int] | None:
        """Return the existing ones of the keys, and the revision of the read. None: too many to be read at once."""
        if len(keys) > _MOST_AT_ONCE:
            return None
        with self._translating():
            rows = self._cursor.execute(_SEVERAL[len(keys)], keys).fetchall()
        return {row[0]: self._built(row) for row in rows if row[0] is not None}, max(row[3] for row in rows)

    def range(
        self, prefix: str, after: str | None, limit: int | None, revision: int | None, *, keys_only: bool
    ) -> Page:
        """Return a page of keys, now or at `revision`."""
        with self._snapshot(revision) as newest:
            at = newest if revision is None else revision
            follows = after is not None and after >= prefix
            bounds = (after if follows else prefix, end_of_prefix(prefix))
            enough = -1 if limit is None else limit + 1
            if at == newest:
                rows = self._cursor.execute(_NOW[follows, keys_only], (*bounds, enough)).fetchall()
                items = [self._built(row, keys_only=keys_only) for row in rows]
            else:
                items = list(
                    islice(
                        self._stood(bounds, at, follows=follows, keys_only=keys_only), None if limit is None else enough
                    )
                )
            more = limit is not None and len(items) > limit
            return Page(tuple(items[:limit]), at, more=more)

    def changes(self, prefix: str, start_revision: int) -> tuple[list[Event], int]:
        """Return whole transactions from `start_revision` on, a bounded number, and the next revision."""
        with self._snapshot(None) as newest:
            compacted = self._cursor.execute(_META).fetchall()[0][1]
            if start_revision < compacted:
                raise Compacted(compacted)
            if start_revision > newest:
                return [], start_revision
            first = self.first_row_of(start_revision)
            last = self._cursor.execute(
                "SELECT revision FROM log WHERE id < ? ORDER BY id DESC LIMIT 1", (first + _SCAN,)
            ).fetchall()
            resume = max(start_revision, last[0][0] if last else newest) + 1
            end = self.first_row_of(resume)
            rows = self._cursor.execute(_SPAN, (first, end, prefix, end_of_prefix(prefix))).fetchall()
            return [self._event(row) for row in rows], resume

    def previous(self, row_id: int | None) -> KeyValue | None:
        """Return the version in a log row; None if it is purged or a deletion."""
        if row_id is None:
            return None
        with self._translating():
            rows = self._cursor.execute(_ROW, (row_id,)).fetchall()
        return self._built(rows[0]) if rows and rows[0][4] else None

    def next_lease_end(self) -> float | None:
        """Return when the next lease ends; None if there is none."""
        with self._translating():
            rows = self._cursor.execute("SELECT at FROM lease ORDER BY at LIMIT 1").fetchall()
            return rows[0][0] if rows else None

    def lease_end(self, id_: int) -> float | None:
        """Return when that lease ends; None if it has ended."""
        with self._translating():
            rows = self._cursor.execute("SELECT at FROM lease WHERE id = ?", (id_,)).fetchall()
            return rows[0][0] if rows else None

    def compactable(self, before: int, keep_bytes: int) -> int:
        """Return the revision to compact to, or 0.

        What is kept is younger than `before` and within `keep_bytes`.
        """
        with self._snapshot(None) as newest:
            oldest, total = self._cursor.execute(
                "SELECT (SELECT min(id) FROM log), (SELECT total FROM log ORDER BY id DESC LIMIT 1)"
            ).fetchall()[0]
            if oldest is None:
                return 0
            kept = max(self._first_row("at", before), self._first_row("total", total - keep_bytes))
            if kept <= oldest:
                return 0
            rows = self._cursor.execute(
                "SELECT revision FROM log WHERE id >= ? ORDER BY id LIMIT 1", (kept,)
            ).fetchall()
            return int(rows[0][0]) if rows else newest

    def purge_pending(self) -> bool:
        """Return whether a compaction has rows left to delete."""
        with self._snapshot(None):
            compacted, purged = self._cursor.execute("SELECT compacted, purged FROM meta").fetchall()[0]
            return bool(purged < self.first_row_of(compacted))

    def unreachable(self, most: int) -> tuple[list[int], list[tuple[int, str]], int]:
        """Return the versions to delete, the deletions to delete, and the next row to examine.

        Examines up to `most` log rows. A row from before the compacted revision makes the previous version
        unreachable. A deletion stays until the compacted revision has passed it, so that a watch from that revision
        still sees it; and it is deleted last, because it refers to the previous version. The ids are in order, so that
        deleting goes through the file page by page.
        """
        with self._snapshot(None):
            compacted, purged = self._cursor.execute("SELECT compacted, purged FROM meta").fetchall()[0]
            end = self.first_row_of(compacted)
            look = "SELECT id, key, version, previous FROM log WHERE id >= ? AND id < ? ORDER BY id LIMIT ?"
            seen = self._cursor.execute(look, (purged, end, most)).fetchall()
        deleted = [(row, key) for row, key, version, _ in seen if not version]
        rows = sorted(previous for *_, previous in seen if previous is not None)
        return rows, deleted, seen[-1][0] + 1 if len(seen) == most else end

    def free_pages(self) -> int:
        """Return the number of pages to release: 0 unless they are more than a quarter of the file and than 16 MiB."""
        with self._translating():
            free, pages = int(self._connection.pragma("freelist_count")), int(self._connection.pragma("page_count"))
        return free if free > max(4_096, pages // 4) else 0

    def sizes(self) -> dict[str, int]:
        """Return sizes, for people."""
        with self._translating():
            leases = self._cursor.execute("SELECT count(*) FROM lease").fetchall()[0][0]
            pages = self._connection.pragma("page_count") * self._connection.pragma("page_size")
            return {"leases": int(leases), "bytes": int(pages)}

    def integrity(self) -> list[str]:
        """Return what is wrong with the file; empty if nothing is. Reads all of it."""
        with self._translating():
            found = [row[0] for row in self._cursor.execute("PRAGMA integrity_check(20)").fetchall()]
            problems = [] if found == ["ok"] else [str(problem) for problem in found]
            for id_, key, value, kept in self._cursor.execute("SELECT id, key, value, checksum FROM log"):
                if checksum(key, value) != kept:
                    problems.append(f"log row {id_} (key {key!r}): wrong checksum")
            lost = "SELECT key FROM live WHERE log NOT IN (SELECT id FROM log) LIMIT 20"
            problems += [f"key {row[0]!r}: its value is missing" for row in self._cursor.execute(lost)]
        return problems

    def first_row_of(self, revision: int) -> int:
        """Return the id of the first log row of `revision` or later; one past the last row if there is none."""
        return self._first_row("revision", revision)

    # Internal

    def _first_row(self, column: str, least: int) -> int:
        # Ids grow with revision, time and total size, so a binary search over ids needs no index.
        ends = self._cursor.execute("SELECT min(id), max(id) FROM log").fetchall()[0]
        if ends[0] is None:
            return 0
        low, high = int(ends[0]), int(ends[1]) + 1
        probe = f"SELECT id, {column} FROM log WHERE id >= ? ORDER BY id LIMIT 1"  # noqa: S608 - internal names
        while low < high:
            middle = (low + high) // 2
            id_, found = self._cursor.execute(probe, (middle,)).fetchall()[0]
            if found >= least:
                high = middle
            else:
                low = id_ + 1
        return low

    def _stood(self, bounds: tuple[Any, ...], at: int, *, follows: bool, keys_only: bool) -> Iterator[KeyValue]:
        """Yield the keys between the bounds as of a revision."""
        for (row_id,) in self._connection.cursor().execute(_THEN[follows], bounds):
            kv = self._walk(row_id, at)
            if kv is not None:
                yield without_value(kv) if keys_only else kv

    def _walk(self, row_id: int | None, revision: int) -> KeyValue | None:
        """Follow the versions of a key back to the one at `revision`."""
        while row_id is not None:
            rows = self._cursor.execute(_ROW, (row_id,)).fetchall()
            if not rows:
                return None
            row = rows[0]
            if row[3] <= revision:
                return self._built(row) if row[4] else None
            row_id = row[7]
        return None

    def _event(self, row: Row) -> Event:
        kv = self._built(row)
        if kv.version:
            return Event("put", kv, self.previous(row[7]))
        return Event("delete", kv, self.previous(row[7]))

    def _built(self, row: Row, *, keys_only: bool = False) -> KeyValue:
        key, value, created, revision, version, lease, kept, _ = row
        if keys_only:
            return KeyValue(key, b"", created, revision, version, lease)
        if crc32(value, crc32(key.encode())) != kept:
            raise Damaged(
                f"{self._path}: the value of {key!r} is damaged; run `hostler store check`, or restore a backup"
            )
        return KeyValue(key, value, created, revision, version, lease)

    @contextmanager
    def _snapshot(self, revision: int | None) -> Iterator[int]:
        """Read everything inside as of one instant; checks that `revision` can be read."""
        with self._translating():
            self._cursor.execute("BEGIN")
            try:
                newest, compacted = self._cursor.execute(_META).fetchall()[0]
                if revision is not None and revision > newest:
                    raise FutureRevision(f"revision {revision}: the store is at {newest}")
                if revision is not None and revision < compacted:
                    raise Compacted(compacted)
                yield newest
            finally:
                self._cursor.execute("COMMIT")

    @contextmanager
    def _translating(self) -> Iterator[None]:
        try:
            yield
        except apsw.Error as error:
            raise translate_error(self._path, error) from error
