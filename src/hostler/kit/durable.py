"""Let what was written to a disk outlive a power failure."""

from __future__ import annotations

import os


def sync_file(path: str | os.PathLike[str], *, follow: bool = True) -> None:
    """The bytes of a file. Not `follow`: OSError, where it is a link."""
    _sync(path, os.O_RDONLY if follow else os.O_RDONLY | os.O_NOFOLLOW)


def sync_folder(path: str | os.PathLike[str]) -> None:
    """The names in a folder."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: str | os.PathLike[str], how: int) -> None:
    descriptor = os.open(path, how | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
