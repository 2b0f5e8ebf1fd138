"""Writes that survive a power failure."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def sync_file(path: str | os.PathLike[str], *, follow: bool = True) -> None:
    """Sync the content of a file. Not `follow`: OSError if it is a link."""
    _sync(path, os.O_RDONLY if follow else os.O_RDONLY | os.O_NOFOLLOW)


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Sync the directory entries of a folder."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def write_whole(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace a file atomically: readers see the old or the new content, also after a power failure."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def _sync(path: str | os.PathLike[str], how: int) -> None:
    descriptor = os.open(path, how | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
