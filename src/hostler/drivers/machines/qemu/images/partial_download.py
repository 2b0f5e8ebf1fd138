"""A partial download: the received bytes, the version that they belong to, and the checksum so far."""

from __future__ import annotations

import fcntl
import hashlib
import os
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from hostler.drivers.machines.qemu.images.layout import release, take
from hostler.drivers.machines.qemu.images.transfer import CHUNK
from hostler.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostler.drivers.machines.qemu.images.layout import ImageLayout


class PartialDownload:
    """A partial download, named by the checksum of the complete file. All methods block: call them in a thread."""

    def __init__(self, place: ImageLayout, sha256: str) -> None:
        self.path = place.parts / f"{sha256}.part"
        self.sha256 = sha256
        self._version = place.parts / f"{sha256}.version"
        self._hash = hashlib.sha256()
        self._file: IO[bytes] | None = None
        self.length = 0

    def is_whole(self) -> bool:
        """Return whether the file is complete and correct."""
        return self.length > 0 and self._hash.hexdigest() == self.sha256

    def checksum(self) -> str:
        """Return the checksum of the received bytes."""
        return self._hash.hexdigest()

    def read(self) -> None:
        """Read the bytes received so far."""
        self._hash, self.length = hashlib.sha256(), 0
        with self.path.open("rb") as file:
            while data := file.read(CHUNK):
                self._hash.update(data)
                self.length += len(data)

    def version(self) -> str:
        """Return the server's version of the received bytes; empty: none."""
        try:
            return self._version.read_text(encoding="ascii")
        except (FileNotFoundError, UnicodeDecodeError):
            return ""

    def restart(self, version: str) -> None:
        """Discard the received bytes and expect that version. The version is stored before any byte of it."""
        os.truncate(self.path, 0)
        self._hash, self.length = hashlib.sha256(), 0
        self._version.write_text(version, encoding="ascii", errors="ignore")

    def append(self, data: bytes) -> None:
        """Append received bytes."""
        if self._file is None:
            self._file = self.path.open("ab", buffering=0)
        self._file.write(data)
        self._hash.update(data)
        self.length += len(data)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def forget(self) -> None:
        """Delete the partial download."""
        self.close()
        self.path.unlink(missing_ok=True)
        self._version.unlink(missing_ok=True)


@contextmanager
def held_part(place: ImageLayout, sha256: str) -> Iterator[PartialDownload]:
    """Yield the partial download with that checksum, locked. Unavailable: another process downloads the same file."""
    part = PartialDownload(place, sha256)
    with place.locked(alone=False):  # so that it is not removed between opening and locking
        lock = os.open(part.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not take(lock, fcntl.LOCK_EX):
            os.close(lock)
            raise Unavailable(f"image {sha256[:12]}…: another process is loading it; wait for that one, then try again")
    try:
        yield part
    finally:
        part.close()
        release(lock)
