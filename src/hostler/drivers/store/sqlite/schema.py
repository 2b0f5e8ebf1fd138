"""The tables, and the checks of a file before it is trusted."""

from __future__ import annotations

import fcntl
import os
import struct
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import apsw

from hostler.errors import Closed, Damaged, HostlerError, Invalid, Unavailable, Uncertain
from hostler.kit.fsync import sync_file, sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

APPLICATION_ID = 0x486F7374  # "Host"
SCHEMA_VERSION = 1
OLDEST_SAFE_SQLITE = (3, 51, 3)
"""Earlier versions (3.7.0 to 3.51.2) could corrupt the database when resetting the write-ahead log."""

_TABLES = """
CREATE TABLE meta (
    id        INTEGER PRIMARY KEY CHECK (id = 1),
    revision  INTEGER NOT NULL,  -- the newest
    compacted INTEGER NOT NULL,  -- history before it may not be read
    purged    INTEGER NOT NULL,  -- log rows below this id have been looked at by the purge that follows a compaction
    boot      TEXT NOT NULL      -- the boot of the machine whose clock lease.at is on
) STRICT;

CREATE TABLE log (
    id       INTEGER PRIMARY KEY,  -- grows with the revision
    revision INTEGER NOT NULL,
    at       INTEGER NOT NULL,     -- milliseconds since 1970
    total    INTEGER NOT NULL,     -- bytes of keys and values up to here, so that a span's size is a subtraction
    key      TEXT NOT NULL,
    value    BLOB NOT NULL,
    created  INTEGER NOT NULL,
    version  INTEGER NOT NULL,     -- 0: the key was deleted
    lease    INTEGER,
    previous INTEGER,              -- the log row of the version before
    checksum INTEGER NOT NULL
) STRICT;

CREATE TABLE live (
    key     TEXT PRIMARY KEY,
    log     INTEGER NOT NULL,      -- the newest log row; of a deleted key too, until that is purged
    created INTEGER NOT NULL,
    version INTEGER NOT NULL,
    lease   INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX live_lease ON live (lease) WHERE lease IS NOT NULL;

CREATE TABLE lease (
    id   INTEGER PRIMARY KEY,
    ttl  REAL NOT NULL,
    at   REAL NOT NULL,            -- on the monotonic clock of meta.boot
    wall REAL NOT NULL             -- the same instant on the calendar, for the next boot
) STRICT;

CREATE INDEX lease_at ON lease (at);
"""


def check_library() -> None:
    """Raise Invalid if the SQLite library of apsw can corrupt data."""
    version = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))
    if version < OLDEST_SAFE_SQLITE:
        wanted = ".".join(map(str, OLDEST_SAFE_SQLITE))
        raise Invalid(f"SQLite {apsw.sqlite_lib_version()}: can corrupt its file; install an apsw with {wanted}")


@contextmanager
def write_turn(path: Path, descriptor: int) -> Iterator[None]:
    """Keep every other process from writing. SQLite's own lock is unfair: of four writers, one may starve."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        raise Unavailable(f"{path}.lock: {error.strerror}; nothing was written") from error
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def open_lock(path: Path) -> int:
    """Open the lock file that orders the writers. It is not created next to a file of another program."""
    try:
        if size := _size(path):
            _check_header(path, size)
        return os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _cannot_open(path, error) from error


def prepare(path: Path, descriptor: int, boot: str) -> None:
    """Create the file if there is none, and check an existing one before anything is written to it.

    An existing file is complete, so checking it needs no lock: a reader can open it while others write.
    """
    check_library()
    try:
        if _size(path) == 0:
            with write_turn(path, descriptor):
                if _size(path) == 0:
                    _create(path, boot)
        _check_header(path, _size(path))
    except OSError as error:
        raise _cannot_open(path, error) from error


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def connect(path: Path, *, busy_timeout: float) -> apsw.Connection:
    """Return a connection to a file that `prepare` has accepted."""
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        connection.set_busy_timeout(int(busy_timeout * 1000))
        for pragma in (
            "synchronous = FULL",
            "journal_size_limit = 67108864",
            "cache_size = -32768",
            "foreign_keys = OFF",
        ):
            connection.execute(f"PRAGMA {pragma}")
        mode = connection.pragma("journal_mode", "wal")
        if mode != "wal":
            raise Invalid(f"{path}: this file system cannot share memory, which SQLite's WAL needs; use a local disk")
        if not connection.execute("SELECT count(*) FROM meta").fetchall()[0][0]:
            raise Damaged(f"{path}: its meta row is missing; restore a backup")
    except apsw.Error as error:
        raise translate_error(path, error) from error
    return connection


def translate_error(path: Path, error: apsw.Error, *, committing: bool = False) -> HostlerError:
    """Translate a SQLite error. `committing`: it occurred while a commit was being made durable."""
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return Damaged(f"{path}: the file is damaged ({error}); run `hostler store check`, or restore a backup")
    if isinstance(error, apsw.InterruptError):
        return Closed(f"{path}: the store was closed during this read")
    if isinstance(error, apsw.FullError):
        return Unavailable(f"{path}: no space left on the disk; nothing was written, free some space and try again")
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return Unavailable(f"{path}: another program holds the file's lock; nothing was written, try again")
    if isinstance(error, apsw.ReadOnlyError | apsw.PermissionsError | apsw.CantOpenError):
        return Unavailable(f"{path}: cannot be written ({error}); check the permissions of the file and its folder")
    if isinstance(error, apsw.IOError) and not committing and _no_space(error):
        return Unavailable(f"{path}: no space left on the disk; nothing was written, free some space and try again")
    if committing:
        return Uncertain(f"{path}: {error} while committing; it may have been written, read before you act")
    return Unavailable(f"{path}: {error}; nothing was written")


def _no_space(error: apsw.Error) -> bool:
    # A shared-memory file that cannot grow, or a write that the file size limit stopped: nothing was committed.
    code = getattr(error, "extendedresult", 0)
    return code in (apsw.SQLITE_IOERR_SHMSIZE, apsw.SQLITE_IOERR_WRITE, apsw.SQLITE_IOERR_TRUNCATE)


def _create(path: Path, boot: str) -> None:
    """Create a complete database next to the path and rename it: every process sees a finished file."""
    fresh = Path(f"{path}.new")
    for leftover in (fresh, Path(f"{fresh}-journal"), Path(f"{fresh}-wal"), Path(f"{fresh}-shm")):
        leftover.unlink(missing_ok=True)
    os.close(os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        connection = apsw.Connection(str(fresh), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.execute(f"PRAGMA auto_vacuum = INCREMENTAL; PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            connection.execute(_TABLES)
            connection.execute("INSERT INTO meta VALUES (1, 1, 0, 0, ?)", (boot,))
            connection.pragma("journal_mode", "wal")
        finally:
            connection.close()
        sync_file(fresh)
        fresh.rename(path)
        sync_folder(path.parent)
    except apsw.Error as error:
        fresh.unlink(missing_ok=True)
        raise translate_error(path, error) from error


def _check_header(path: Path, size: int) -> None:
    with path.open("rb") as file:
        header = file.read(100)
    if len(header) < 100 or header[:16] != b"SQLite format 3\0":
        raise Damaged(f"{path}: not a SQLite database, or its start is damaged; nothing was changed")
    (application,) = struct.unpack(">I", header[68:72])
    (version,) = struct.unpack(">I", header[60:64])
    if application != APPLICATION_ID:
        raise Invalid(f"{path}: a SQLite database of another program; nothing was changed, choose another path")
    if version != SCHEMA_VERSION:
        raise Invalid(
            f"{path}: its format {version} is not {SCHEMA_VERSION}; use the Hostler that wrote it, or a newer one"
        )
    (page_size,) = struct.unpack(">H", header[16:18])
    (pages,) = struct.unpack(">I", header[28:32])
    log = Path(f"{path}-wal")
    if size < pages * (65536 if page_size == 1 else page_size) and not (log.exists() and log.stat().st_size):
        raise Damaged(f"{path}: the file is cut short ({size} bytes of {pages} pages); restore a backup")


def _cannot_open(path: Path, error: OSError) -> HostlerError:
    if isinstance(error, FileNotFoundError):
        return Invalid(f"{path}: its folder does not exist; create it, or choose another path")
    if isinstance(error, IsADirectoryError | NotADirectoryError):
        return Invalid(f"{path}: {error.strerror}; name a file")
    return Unavailable(f"{path}: cannot be opened ({error.strerror}); check permissions and free space of its folder")
