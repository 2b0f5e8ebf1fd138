"""A file that is being loaded: what has arrived of it, which version of it that is, and its checksum so far."""

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

    from hostler.drivers.machines.qemu.images.layout import Place


class Part:
    """Named for the checksum that the whole is to have. Everything here blocks: call it in a thread."""

    def __init__(self, place: Place, sha256: str) -> None:
        self.path = place.parts / f"{sha256}.part"
        self.sha256 = sha256
        self._version = place.parts / f"{sha256}.version"
        self._hash = hashlib.sha256()
        self._file: IO[bytes] | None = None
        self.length = 0

    def is_whole(self) -> bool:
        """Whether all has arrived, and is what it should be."""
        return self.length > 0 and self._hash.hexdigest() == self.sha256

    def checksum(self) -> str:
        """Of what has arrived."""
        return self._hash.hexdigest()

    def read(self) -> None:
        """Learn what has arrived so far."""
        self._hash, self.length = hashlib.sha256(), 0
        with self.path.open("rb") as file:
            while data := file.read(CHUNK):
                self._hash.update(data)
                self.length += len(data)

    def version(self) -> str:
        """What the server called the version that has begun to arrive; empty: nothing."""
        try:
            return self._version.read_text(encoding="ascii")
        except (FileNotFoundError, UnicodeDecodeError):
            return ""

    def restart(self, version: str) -> None:
        """Forget what has arrived; a file of that version is coming. No byte of it is there before its version is."""
        os.truncate(self.path, 0)
        self._hash, self.length = hashlib.sha256(), 0
        self._version.write_text(version, encoding="ascii", errors="ignore")

    def append(self, data: bytes) -> None:
        """This has arrived next."""
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
        """Throw everything away."""
        self.close()
        self.path.unlink(missing_ok=True)
        self._version.unlink(missing_ok=True)


@contextmanager
def held_part(place: Place, sha256: str) -> Iterator[Part]:
    """The part of that checksum, this caller's own meanwhile. Unavailable: another process loads the same."""
    part = Part(place, sha256)
    with place.locked(alone=False):  # so that it is not swept between being opened and being locked
        lock = os.open(part.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not take(lock, fcntl.LOCK_EX):
            os.close(lock)
            raise Unavailable(f"image {sha256[:12]}…: another process is loading it; wait for that one, then try again")
    try:
        yield part
    finally:
        part.close()
        release(lock)
