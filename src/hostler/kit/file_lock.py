"""A lock on a file that one process at a time has, for example on its data folder."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pathlib import Path


class FileLock:
    """An exclusive lock, until `release` or the end of the process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def acquire(cls, path: Path) -> Self | None:
        """Lock a file, which is created if it is missing. None: another process or another `FileLock` has it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor)

    def release(self) -> None:
        """Give the lock up. Closing alone is not enough: a child that has not yet executed its program has a copy."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)
