"""Takes over a file that another user's process wrote, so that no other process has it open."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
import threading
from typing import TYPE_CHECKING

from hostler.errors import Refused, Unavailable
from hostler.kit.tasks import run_to_end

if TYPE_CHECKING:
    from pathlib import Path

CHUNK = 2**26
_NOT_HERE = (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)


async def take(made: Path, target: Path) -> None:
    """Move or copy `made` to `target`, durably; `made` may be gone afterwards. Unavailable.

    A file that this user wrote is renamed. Otherwise a process of the file's owner may have it open and could keep
    writing to it after a rename, so it is copied. When a cancelled call raises, the copy has ended.
    """
    over = threading.Event()
    taking = asyncio.ensure_future(asyncio.to_thread(_take, made, target, over))
    try:
        await asyncio.shield(taking)
    finally:
        over.set()
        await run_to_end(_ended(taking))


async def _ended(taking: asyncio.Future[None]) -> None:
    with contextlib.suppress(Exception):
        await taking


def _take(made: Path, target: Path, over: threading.Event) -> None:
    try:
        source = os.open(made, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(source)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                raise Refused(f"{made}: not a regular file with one link; check the processes of user {status.st_uid}")
            if status.st_uid == os.geteuid():
                os.fsync(source)
                made.replace(target)
            else:
                _copy(source, status.st_size, target, over)
        finally:
            os.close(source)
    except OSError as error:
        raise Unavailable(f"{target}: cannot be created: {error.strerror}; fix the cause and try again") from None


def _copy(source: int, size: int, target: Path, over: threading.Event) -> None:
    target.unlink(missing_ok=True)
    fresh = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        at = 0
        while (at := _next_data(source, at, size)) < size:
            end = min(size, os.lseek(source, at, os.SEEK_HOLE), at + CHUNK)
            copied = _copied(source, fresh, at, end - at)
            if copied == 0 or over.is_set():
                raise Unavailable(f"{target}: the copy was interrupted; try again")
            at += copied
        os.ftruncate(fresh, size)
        os.fsync(fresh)
    finally:
        os.close(fresh)


def _next_data(source: int, at: int, size: int) -> int:
    """Return the offset of the next data, skipping holes."""
    try:
        return os.lseek(source, at, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return size


def _copied(source: int, fresh: int, at: int, count: int) -> int:
    """Copy a range; on file systems with copy-on-write the blocks are shared until one file changes."""
    try:
        return os.copy_file_range(source, fresh, count, at, at)
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
    os.lseek(fresh, at, os.SEEK_SET)
    return os.sendfile(fresh, source, at, count)
