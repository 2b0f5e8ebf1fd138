"""The same operations through apsw only, as a baseline for benchmarks of the driver.

The driver's own pragmas, a table with etcd's columns but no history, one commit per write, everything on the calling
thread.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import apsw

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

_TABLE = """
CREATE TABLE kv (
    key TEXT PRIMARY KEY, value BLOB NOT NULL, created INTEGER NOT NULL, revision INTEGER NOT NULL,
    version INTEGER NOT NULL
) STRICT
"""
_PUT = """
INSERT INTO kv VALUES (?1, ?2, ?3, ?3, 1)
ON CONFLICT (key) DO UPDATE SET value = ?2, revision = ?3, version = version + 1
"""


class BareSqlite:
    """A separate database at `path`, deleted when it is left."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._revision = 1
        self._cursor: Any = None
        self._connection: apsw.Connection | None = None

    async def __aenter__(self) -> Self:
        self._delete()
        self._connection = apsw.Connection(str(self._path))
        self._connection.pragma("journal_mode", "wal")
        for pragma in ("synchronous = FULL", "journal_size_limit = 67108864", "cache_size = -32768"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.execute(_TABLE)
        self._cursor = self._connection.cursor()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._connection is not None:
            self._connection.close()
        self._delete()

    def _delete(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self._path}{suffix}").unlink(missing_ok=True)

    async def put(self, key: bytes, value: bytes) -> int:
        """Return the revision."""
        self._revision += 1
        self._cursor.execute(_PUT, (key.decode(), value, self._revision))
        return self._revision

    async def get(self, key: bytes) -> bytes | None:
        """Return the value."""
        query = "SELECT value, created, revision, version FROM kv WHERE key = ?"
        rows = self._cursor.execute(query, (key.decode(),)).fetchall()
        return rows[0][0] if rows else None

    async def txn3(self, keys: Sequence[bytes], value: bytes) -> bool:
        """Put three keys under a comparison that always holds."""
        execute = self._cursor.execute
        self._revision += 1
        execute("BEGIN IMMEDIATE")
        found = execute("SELECT version FROM kv WHERE key = ?", (keys[0].decode(),)).fetchall()
        for key in keys[:3]:
            execute(_PUT, (key.decode(), value, self._revision))
        execute("COMMIT")
        return not found or found[0][0] > -1

    async def range(self, prefix: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return keys and values."""
        text = prefix.decode()
        query = "SELECT key, value FROM kv WHERE key >= ? AND key < ? ORDER BY key LIMIT ?"
        rows: list[tuple[bytes, bytes]] = self._cursor.execute(query, (text, text + "\U0010ffff", limit)).fetchall()
        return rows
