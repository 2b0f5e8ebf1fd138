"""Where images are: layout, locks, and folders in which new ones are made.

    {digest}/       an image: image.json, disk, kernel, initrd (0444); warm/ beside them
    names/{name}    which digest a name stands for
    scratch/        images that are being made: a folder and the lock of whoever makes it, each
    parts/          downloads that have not ended, by their checksum
    lock            shared: nobody removes or renames meanwhile; exclusive: nobody else looks

What a process that died left in `scratch` is nobody's: its lock is free. The next one that comes sweeps it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import subprocess
import time
from typing import TYPE_CHECKING

from hostler.errors import HostlerError, Invalid, Refused, Unavailable
from hostler.kit.fsync import sync_folder, write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
DIGEST = re.compile(r"[0-9a-f]{64}")
MOUNTS = "/proc/self/mountinfo"
LOCK_WITHIN = 60.0
"""Seconds to wait for others; what they do under the lock takes milliseconds, unless an image has to be copied."""
PARTS_KEPT = 14 * 86400.0
"""Seconds after which a download that nobody went on with is thrown away."""


def checked_name(name: str) -> str:
    """The name. Invalid: it cannot be one."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise Invalid(
            f"image {name!r}: a name has 1 to 63 of a-z, 0-9, '.', '_' and '-', and begins with a letter or a digit;"
            " choose another one"
        )
    return name


class Scratch:
    """A folder of its maker's own, until it becomes an image or is thrown away."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self.lock = lock
        """Open descriptor of its lock. A child that writes here inherits it, so that the folder outlives its maker
        exactly as long as the child does."""


class Place:
    """The folder of images. Everything here blocks: call it in a thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names = path / "names"
        self.parts = path / "parts"
        self._scratch = path / "scratch"

    def image(self, digest: str) -> Path:
        """The folder of an image."""
        return self.path / digest

    def make(self) -> None:
        """Let the folder be there."""
        for folder in (self.path.parent, self.path):  # its parent is the data folder, which is its owner's alone, too
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self.names, self._scratch, self.parts):
            folder.mkdir(mode=0o700, exist_ok=True)

    @contextlib.contextmanager
    def locked(self, *, alone: bool) -> Iterator[None]:
        """Meanwhile nothing is renamed or removed; `alone`: nor linked. Unavailable: others are slow."""
        with translated(self.path):
            self.make()
            lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                self._take(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
                yield
            finally:
                release(lock)

    def _take(self, lock: int, kind: int) -> None:
        end = time.monotonic() + LOCK_WITHIN
        while not take(lock, kind):
            if time.monotonic() > end:
                raise Unavailable(
                    f"images {self.path}: another process has held the lock for {LOCK_WITHIN:.0f} s;"
                    " wait for it to end, then try again"
                )
            time.sleep(0.005)

    # Scratch

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Scratch]:
        """A new folder, removed at the end unless it has become an image."""
        with self.locked(alone=False):
            path = self._scratch / secrets.token_hex(8)
            lock = os.open(lock_of(path), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            path.mkdir(mode=0o700)
        try:
            yield Scratch(path, lock)
        finally:
            discard(path)
            release(lock)

    def sweep(self, now: float) -> None:
        """Remove what dead processes left. Under the exclusive lock, so that no folder is just being made."""
        for unnamed in self.names.glob(".*"):
            unnamed.unlink(missing_ok=True)
        for lock_path in self._scratch.glob("*.lock"):
            try:
                lock = os.open(lock_path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:  # its owner has just ended
                continue
            try:
                if take(lock, fcntl.LOCK_EX):
                    discard(lock_path.with_suffix(""))
            finally:
                release(lock)
        for folder in self._scratch.iterdir():
            if folder.suffix != ".lock" and not lock_of(folder).exists():
                discard(folder)
        for part in self.parts.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if now - part.stat().st_mtime > PARTS_KEPT and not is_held(part):
                    part.unlink()

    # Names

    def digest_of(self, name: str) -> str | None:
        """What a name stands for; None: there is no such name."""
        try:
            text = (self.names / name).read_text(encoding="ascii").strip()
        except (FileNotFoundError, UnicodeDecodeError):
            return None
        return text if DIGEST.fullmatch(text) else None

    def named(self) -> dict[str, str]:
        """Every name and its digest, in order."""
        try:
            names = sorted(entry.name for entry in self.names.iterdir() if NAME.fullmatch(entry.name))
        except FileNotFoundError:
            return {}
        found = {name: self.digest_of(name) for name in names}
        return {name: digest for name, digest in found.items() if digest is not None}

    def call(self, name: str, digest: str) -> None:
        """Let the name stand for the digest. Under the exclusive lock."""
        write_whole(self.names / name, f"{digest}\n".encode())

    def forget(self, name: str) -> None:
        """Let the name stand for nothing. Under the exclusive lock."""
        (self.names / name).unlink(missing_ok=True)
        sync_folder(self.names)

    def digests(self) -> list[str]:
        """Every image, named or not."""
        try:
            return sorted(entry.name for entry in self.path.iterdir() if DIGEST.fullmatch(entry.name))
        except FileNotFoundError:
            return []

    def keep(self, scratch: Path, digest: str) -> None:
        """Let the folder, all of which is on disk, be the image, unless there is that one. Under the exclusive lock."""
        if not self.image(digest).exists():
            scratch.rename(self.image(digest))
            sync_folder(self.path)

    def drop(self, digest: str) -> None:
        """Remove an image. Under the exclusive lock. It is gone in one step; its bytes follow."""
        going = self._scratch / secrets.token_hex(8)
        self.image(digest).rename(going)
        sync_folder(self.path)
        discard(going)


def lock_of(scratch: Path) -> Path:
    """The file whose lock says that a scratch folder has an owner."""
    return scratch.with_name(f"{scratch.name}.lock")


def discard(scratch: Path) -> None:
    """Remove a scratch folder and then its lock, which says until then that there is something to remove.

    One in which something is mounted stays: what is there is not ours, and removing files would go right through to it.
    """
    if has_mounts(scratch):
        return
    shutil.rmtree(scratch, ignore_errors=True)
    if scratch.exists() and as_subordinate_root():  # a build that was killed can leave files of subordinate users
        with contextlib.suppress(OSError):
            subprocess.run([*as_subordinate_root(), "rm", "-rf", str(scratch)], check=False, capture_output=True)
    if not scratch.exists():
        lock_of(scratch).unlink(missing_ok=True)


def has_mounts(folder: Path) -> bool:
    """Whether anything is mounted at the folder or in it, as far as this process can see."""
    top = os.path.realpath(folder)
    with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as mounts:
        points = [re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), line.split()[4]) for line in mounts]
    return any(point == top or point.startswith(f"{top}/") for point in points)


def as_subordinate_root() -> Sequence[str]:
    """What to run a command under so that it may own files as any user; nothing, where we are root."""
    return () if os.geteuid() == 0 else ("unshare", "--user", "--map-root-user", "--map-auto", "--")


def take(lock: int, kind: int) -> bool:
    """Whether the lock could be had."""
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def release(lock: int) -> None:
    """Not by closing alone: a child forked meanwhile holds the same lock through its copy."""
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


def is_held(path: Path) -> bool:
    """Whether somebody has the file locked."""
    lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return not take(lock, fcntl.LOCK_EX)
    finally:
        release(lock)


def sha256_of(path: Path) -> str:
    """Of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def translated(where: Path) -> Iterator[None]:
    """Errors of the file system as ours."""
    try:
        yield
    except HostlerError:
        raise
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR):
            raise Refused(
                f"images {where}: {error.strerror}; use a data folder of your own, or the account that owns this one"
            ) from None
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "free some space there, then try again" if full else "look at that disk, then try again"
        raise Unavailable(f"images {where}: {error.strerror or error}; {advice}") from None
