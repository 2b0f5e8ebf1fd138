"""The state file on disk: one writer at a time, and every reader finds the complete old or the complete new state.

The file is never changed in place. The next state goes into `{path}.tmp`, is made durable, and is renamed to the file's
name; then the rename is made durable. A writer holds a `flock` on `{path}.lock`; the file itself cannot be locked for
that, because every save replaces it. Readers need no lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from typing import TYPE_CHECKING

from hostler.errors import HostlerError, Invalid, Unavailable, Uncertain
from hostler.kit.fsync import sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NOT_PERMITTED = (errno.EACCES, errno.EPERM, errno.EROFS)


class Version:
    """One state of the file, as found or written; kept open, so that no later file gets its inode number."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._seen = _identity(os.fstat(fd))

    def __del__(self) -> None:
        os.close(self._fd)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and other._seen == self._seen

    __hash__ = None  # type: ignore[assignment]

    def is_at(self, path: str) -> bool:
        """Return whether the file at `path` is this one, and was not edited in place."""
        try:
            return _identity(os.stat(path)) == self._seen
        except OSError:
            return False


def _identity(stat: os.stat_result) -> tuple[int, int, int, int]:
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


@contextlib.contextmanager
def write_lock(path: str) -> Iterator[None]:
    """Hold the write lock. Waits while another writer holds it."""
    name = f"{path}.lock"
    try:
        fd = _lock(name)
    except OSError as error:
        raise _write_failed(name, error) from None
    try:
        yield
    finally:
        # Closing alone is not enough: a child that was forked in the meantime holds the same lock through its copy.
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def _lock(name: str) -> int:
    while True:
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if _still_named(name, fd):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # the lock file was deleted: others lock the one that exists now


def _still_named(name: str, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(name), os.fstat(fd))
    except FileNotFoundError:
        return False


def load(path: str) -> tuple[bytes, Version] | None:
    """Return the newest state, durable; None if there is no file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        _check_folder(path)
        return None
    except OSError as error:
        raise _read_failed(path, error) from None
    version = Version(fd)
    try:
        with open(fd, "rb", closefd=False) as file:
            data = file.read()
        # The writer may not have synced the folder yet, and a state that was read must not be lost in a power failure.
        sync_folder(os.path.dirname(path))
    except OSError as error:
        raise _read_failed(path, error) from None
    return data, version


def save(path: str, data: bytes) -> Version:
    """Replace the state durably; the caller holds the write lock.

    Unavailable: the old state remains. Uncertain: the new state is in place, but may not survive a power failure.
    """
    temporary = f"{path}.tmp"
    try:
        version = _write(temporary, data)
        os.rename(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise _write_failed(path, error) from None
    try:
        sync_folder(os.path.dirname(path))
    except OSError as error:
        raise Uncertain(
            f"{path}: saved, but the folder could not be made durable ({error.strerror}); read before you act"
        ) from None
    return version


def size(path: str) -> int:
    """Return the size of the file in bytes, 0 if there is none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _write(temporary: str, data: bytes) -> Version:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)  # of a writer that died
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(fd, left) :]
        os.fsync(fd)
        return Version(fd)
    except BaseException:
        os.close(fd)
        raise


def _check_folder(path: str) -> None:
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise Invalid(f"{path}: the folder {folder} does not exist; create it or name another file")


def _read_failed(path: str, error: OSError) -> HostlerError:
    if error.errno in (errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
        return Invalid(f"{path}: cannot be a state file ({error.strerror}); name another file")
    if error.errno in _NOT_PERMITTED:
        return Unavailable(f"{path}: user {os.getuid()} may not read it ({error.strerror}); change its owner or mode")
    return Unavailable(f"{path}: cannot be read ({error.strerror}); try again")


def _write_failed(path: str, error: OSError) -> HostlerError:
    if error.errno in _NO_SPACE:
        return Unavailable(f"{path}: no space for a new copy of it ({error.strerror}); nothing was written, free space")
    if error.errno in _NOT_PERMITTED:
        folder = os.path.dirname(path)
        return Unavailable(
            f"{path}: user {os.getuid()} may not write there ({error.strerror}); nothing was written, "
            f"change the owner or mode of {folder}"
        )
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return Unavailable(f"{path}: its folder is missing; nothing was written, restore it")
    return Unavailable(f"{path}: cannot be written ({error.strerror}); nothing was written, try again")
