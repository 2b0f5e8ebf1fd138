"""The folder of images: layout, locks, scratch folders for new images, and which machines use an image.

    {digest}/       an image: image.json, disk, kernel, initrd (0444), and warm/
    names/{name}    the digest that a name refers to
    scratch/        images that are being made: for each a folder and the lock of its maker
    parts/          unfinished downloads, by their checksum
    lock            shared: nothing is removed or renamed; exclusive: no other process reads

A scratch folder whose lock is free was left by a dead process. The next process removes it.

A machine uses an image if it has a link to the image's disk, or a copy of it that its state file names.
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

import msgspec

from hostler.errors import HostlerError, Invalid, Refused, Unavailable
from hostler.kit.fsync import sync_folder, write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
DIGEST = re.compile(r"[0-9a-f]{64}")
MOUNTS = "/proc/self/mountinfo"
LOCK_WITHIN = 60.0
"""Seconds to wait for the lock. It is held for milliseconds, unless an image has to be copied."""
PARTS_KEPT = 14 * 86400.0
"""Seconds after which an unfinished download is deleted."""


def check_name(name: str) -> str:
    """Check a name. Invalid: it is not allowed."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise Invalid(
            f"image {name!r}: a name has 1 to 63 of a-z, 0-9, '.', '_' and '-', and begins with a letter or a digit;"
            " choose another one"
        )
    return name


class Scratch:
    """A folder that belongs to its maker until it becomes an image or is removed."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self.lock = lock
        """Open descriptor of its lock.

        A child that writes here inherits it, so that the folder stays locked as long as the child lives.
        """


class ImageLayout:
    """The folder of images. All methods block: call them in a thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names = path / "names"
        self.parts = path / "parts"
        self._scratch = path / "scratch"

    def image(self, digest: str) -> Path:
        """Return the folder of an image."""
        return self.path / digest

    def make(self) -> None:
        """Create the folder, if missing."""
        for folder in (self.path.parent, self.path):  # the parent is the data folder, which is private, too
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in (self.names, self._scratch, self.parts):
            folder.mkdir(mode=0o700, exist_ok=True)

    @contextlib.contextmanager
    def locked(self, *, alone: bool) -> Iterator[None]:
        """Hold the lock: nothing is renamed or removed; `alone`: nor linked. Unavailable: not acquired in time."""
        with translate_errors(self.path):
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
        """Yield a new folder, removed at the end unless it has become an image."""
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
        """Remove what dead processes left.

        The caller holds the exclusive lock, so that no folder is just being created.
        """
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
        """Return the digest of a name; None: no such name."""
        try:
            text = (self.names / name).read_text(encoding="ascii").strip()
        except (FileNotFoundError, UnicodeDecodeError):
            return None
        return text if DIGEST.fullmatch(text) else None

    def named(self) -> dict[str, str]:
        """Return all names and their digests, sorted."""
        try:
            names = sorted(entry.name for entry in self.names.iterdir() if NAME.fullmatch(entry.name))
        except FileNotFoundError:
            return {}
        found = {name: self.digest_of(name) for name in names}
        return {name: digest for name, digest in found.items() if digest is not None}

    def call(self, name: str, digest: str) -> None:
        """Point a name to a digest. The caller holds the exclusive lock."""
        write_whole(self.names / name, f"{digest}\n".encode())

    def forget(self, name: str) -> None:
        """Delete a name. The caller holds the exclusive lock."""
        (self.names / name).unlink(missing_ok=True)
        sync_folder(self.names)

    def digests(self) -> list[str]:
        """Return all images, named or not."""
        try:
            return sorted(entry.name for entry in self.path.iterdir() if DIGEST.fullmatch(entry.name))
        except FileNotFoundError:
            return []

    def keep(self, scratch: Path, digest: str) -> None:
        """Turn a synced folder into the image, unless it exists. The caller holds the exclusive lock."""
        if not self.image(digest).exists():
            scratch.rename(self.image(digest))
            sync_folder(self.path)

    def drop(self, digest: str) -> None:
        """Remove an image. The caller holds the exclusive lock.

        It disappears atomically; its files are deleted after that.
        """
        going = self._scratch / secrets.token_hex(8)
        self.image(digest).rename(going)
        sync_folder(self.path)
        discard(going)


def lock_of(scratch: Path) -> Path:
    """Return the file whose lock shows that a scratch folder has an owner."""
    return scratch.with_name(f"{scratch.name}.lock")


def discard(scratch: Path) -> None:
    """Remove a scratch folder and then its lock file, which until then marks the folder for removal.

    A folder with something mounted in it stays: removing files would reach into the mounted file system.
    """
    if has_mounts(scratch):
        return
    shutil.rmtree(scratch, ignore_errors=True)
    if scratch.exists() and as_subordinate_root():  # a killed build can leave files of subordinate users
        with contextlib.suppress(OSError):
            subprocess.run([*as_subordinate_root(), "rm", "-rf", str(scratch)], check=False, capture_output=True)
    if not scratch.exists():
        lock_of(scratch).unlink(missing_ok=True)


def has_mounts(folder: Path) -> bool:
    """Return whether anything is mounted at or in the folder, as far as this process can see."""
    top = os.path.realpath(folder)
    with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as mounts:
        points = [re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), line.split()[4]) for line in mounts]
    return any(point == top or point.startswith(f"{top}/") for point in points)


def as_subordinate_root() -> Sequence[str]:
    """Return the command prefix that lets a command own files as any user; empty as root."""
    return () if os.geteuid() == 0 else ("unshare", "--user", "--map-root-user", "--map-auto", "--")


def take(lock: int, kind: int) -> bool:
    """Try to take the lock; return whether that succeeded."""
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def release(lock: int) -> None:
    """Release the lock. Closing alone is not enough: a child forked since then holds it through its copy."""
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


def is_held(path: Path) -> bool:
    """Return whether a process has the file locked."""
    lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return not take(lock, fcntl.LOCK_EX)
    finally:
        release(lock)


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def translate_errors(where: Path) -> Iterator[None]:
    """Translate errors of the file system into Hostler's."""
    try:
        yield
    except HostlerError:
        raise
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR):
            raise Refused(
                f"images {where}: {error.strerror}; use another data folder, or the account that owns this one"
            ) from None
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "free some space there, then try again" if full else "check that disk, then try again"
        raise Unavailable(f"images {where}: {error.strerror or error}; {advice}") from None


class Usage(msgspec.Struct, frozen=True):
    """Machines that use an image."""

    machines: tuple[str, ...]
    """Names of the machines that were found."""
    elsewhere: int
    """Links to its disk outside of the known folders."""

    @property
    def count(self) -> int:
        return len(self.machines) + self.elsewhere

    def __str__(self) -> str:
        shown = [*self.machines[:5], *([f"{len(self.machines) - 5} more"] if len(self.machines) > 5 else [])]
        if self.elsewhere:
            shown.append(f"{self.elsewhere} of another data folder")
        return ", ".join(shown)


class _Label(msgspec.Struct):
    vm: str = ""


class _State(msgspec.Struct):
    """The part of a machine's state file that is needed to name it."""

    label: _Label = msgspec.field(default_factory=_Label)
    name: str = ""


class Users:
    """The machines of a data folder, read once and queried for many images."""

    def __init__(self, machines: Path | None) -> None:
        self._by_inode: dict[tuple[int, int], list[str]] = {}
        self._states: list[tuple[str, bytes, tuple[int, int] | None]] = []
        for folder in _folders(machines):
            state = _read(folder / "machine.json")
            name = _name(folder, state)
            base = _inode(folder / "base")
            if base is not None:
                self._by_inode.setdefault(base, []).append(name)
            self._states.append((name, state, base))

    def of(self, image: Path) -> Usage:
        """Return the users of the image in that folder."""
        disk = (image / "disk").stat()
        key = (disk.st_dev, disk.st_ino)
        linked = self._by_inode.get(key, [])
        own = sum((status.st_dev, status.st_ino) == key for status in statuses_in(image))  # of a template's folder
        digest = image.name.encode()
        named = [name for name, state, base in self._states if base != key and digest in state]
        return Usage(tuple(sorted([*linked, *named])), max(0, disk.st_nlink - own - len(linked)))


def statuses_in(folder: Path) -> Iterator[os.stat_result]:
    """Yield the status of all files below the folder. Files may appear and vanish: warming does not hold the lock."""
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                yield os.lstat(os.path.join(place, name))


def _folders(machines: Path | None) -> Iterator[Path]:
    """`machines/{node}/vms/{machine}`."""
    if machines is not None:
        yield from sorted(path for path in machines.glob("*/vms/*") if path.is_dir())


def _name(folder: Path, state: bytes) -> str:
    try:
        read = msgspec.json.decode(state, type=_State)
    except msgspec.MsgspecError:
        return folder.name
    return read.name or read.label.vm or folder.name


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
