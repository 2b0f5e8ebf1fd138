"""A log file with a limited size, readable by its owner only."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SIZE_BYTES = 10 * 2**20
KEPT = 5


class RotatingFile:
    """Writes to `path`; a full file becomes `path.1`, the previous `path.1` becomes `path.2`, and so on.

    On a full disk, log lines are lost; writing raises no error.
    """

    def __init__(self, path: Path, *, size_bytes: int = SIZE_BYTES, kept: int = KEPT) -> None:
        self._path, self._size, self._kept = path, size_bytes, kept
        self._descriptor = self._open()
        self._written = os.fstat(self._descriptor).st_size

    def write(self, text: str) -> int:
        """Write one or more whole lines."""
        data = text.encode(errors="backslashreplace")
        try:
            if self._written and self._written + len(data) > self._size:
                self._rotate()
            self._written += os.write(self._descriptor, data)
        except OSError:
            pass
        return len(text)

    def flush(self) -> None:
        """Do nothing: writes are not buffered."""

    def close(self) -> None:
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
