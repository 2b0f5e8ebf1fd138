"""A log file that does not grow for ever, for its owner's eyes only."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SIZE_BYTES = 10 * 2**20
KEPT = 5


class RotatingFile:
    """What is written goes to `path`; when that is full it becomes `path.1`, the one before `path.2`, and so on.

    A disk that is full loses lines of the log, and nothing else.
    """

    def __init__(self, path: Path, *, size_bytes: int = SIZE_BYTES, kept: int = KEPT) -> None:
        self._path, self._size, self._kept = path, size_bytes, kept
        self._descriptor = self._open()
        self._written = os.fstat(self._descriptor).st_size

    def write(self, text: str) -> int:
        """One or more whole lines."""
        data = text.encode(errors="backslashreplace")
        try:
            if self._written and self._written + len(data) > self._size:
                self._rotate()
            self._written += os.write(self._descriptor, data)
        except OSError:
            pass
        return len(text)

    def flush(self) -> None:
        """Nothing is kept back."""

    def close(self) -> None:
        """No more writing."""
        os.close(self._descriptor)

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _rotate(self) -> None:
        for number in range(self._kept - 1, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{number}")
            if older.exists():
                older.replace(self._path.with_name(f"{self._path.name}.{number + 1}"))
        self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        os.close(self._descriptor)
        self._descriptor = self._open()
        self._written = 0
