"""Packing files and folders into a tar stream, and unpacking a tar stream that is not trusted.

Unpacking writes only below one folder. It refuses names and links that lead out of the folder, devices and pipes, and
never follows a link on the way to a file, whatever created the link. It drops the mode bits setuid, setgid and sticky.
Unpacked files belong to the user who unpacks them.
"""

from __future__ import annotations

import os
import secrets
import stat
import tarfile
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

from hostler.errors import Invalid, NotFound, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Progress = Callable[[int], None]
    """Callback with the number of bytes processed since the last call."""

CHUNK = 256 * 1024
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


# Packing


def size_of(path: Path) -> int:
    """Return the approximate size of a file, or of all files below a folder, in bytes."""
    if not path.is_dir():
        return path.stat().st_size
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            with suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def pack(path: Path, name: str, into: IO[bytes], progress: Progress, skipped: Callable[[str], None]) -> None:
    """Write a file or folder to a tar stream under `name`.

    Entries other than files, folders and links are left out and reported to `skipped`.
    """
    with tarfile.open(fileobj=into, mode="w|", format=tarfile.PAX_FORMAT, bufsize=CHUNK) as archive:
        _pack(archive, os.path.realpath(path), name, progress, skipped)


def _pack(archive: tarfile.TarFile, path: str, name: str, progress: Progress, skipped: Callable[[str], None]) -> None:
    try:
        member = archive.gettarinfo(path, name)
        if member is None or not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            skipped(f"{path}: neither a file nor a folder")
            return
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        if not member.isreg():
            archive.addfile(member)
        else:
            with open(path, "rb") as file:
                archive.addfile(member, _Counted(file, progress))
        if member.isdir():
            for entry in sorted(os.listdir(path)):
                _pack(archive, os.path.join(path, entry), f"{name}/{entry}", progress, skipped)
    except BrokenPipeError:
        raise
    except FileNotFoundError:
        skipped(f"{path}: deleted while it was being packed")
    except OSError as error:
        raise Invalid(
            f"{path}: cannot be read: {error.strerror or error}; leave it out, or change its permissions"
        ) from None


class _Counted:
    def __init__(self, file: IO[bytes], progress: Progress) -> None:
        self._file, self._progress = file, progress

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._progress(len(data))
        return data


# Unpacking


def unpack(stream: IO[bytes], into: Path, progress: Progress, *, only: str | None = None) -> int:
    """Unpack a tar stream into an existing folder. Return the number of files.

    `only`: the stream must hold exactly one file, which is stored under this name. Refused: the stream holds an entry
    that is not allowed. Invalid: a file cannot be written.
    """
    files = 0
    try:
        with tarfile.open(fileobj=stream, mode="r|", bufsize=CHUNK) as archive, _open_beneath(into) as root:
            for member in archive:
                if only is not None and (files or not member.isreg()):
                    raise Refused(
                        f"archive: unexpected entry {_safe(member.name)}, only one file was requested; nothing else is"
                        " unpacked"
                    )
                parts = [only] if only is not None else _parts(member.name)
                if parts:
                    _unpack(archive, member, root, parts, progress)
                    files += not member.isdir()
    except tarfile.TarError as error:
        raise Refused(
            f"archive: the data from the machine is not a tar stream ({error}); check that tar is installed in it"
        ) from None
    except OSError as error:
        raise Invalid(
            f"{error.filename or into}: cannot be written: {error.strerror or error}; check permissions and free space"
        ) from None
    return files


def _unpack(archive: tarfile.TarFile, member: tarfile.TarInfo, root: int, parts: list[str], progress: Progress) -> None:
    with _parent(root, parts) as folder:
        name = parts[-1]
        if member.isdir():
            _make_folder(folder, name, member.mode)
        elif member.isreg():
            content = archive.extractfile(member)
            assert content is not None  # noqa: S101 - it is a file
            _write(folder, name, content, member.mode, progress)
        elif member.issym():
            _check_link(parts, member.linkname)
            with _replacing(folder, name) as temporary:
                os.symlink(member.linkname, temporary, dir_fd=folder)
        elif member.islnk():
            with _parent(root, _parts(member.linkname)) as other, _replacing(folder, name) as temporary:
                target = _parts(member.linkname)[-1]
                if not stat.S_ISREG(os.stat(target, dir_fd=other, follow_symlinks=False).st_mode):
                    raise Refused(
                        f"archive: {_safe(member.name)} is a hard link to something other than a file; refused"
                    )
                os.link(target, temporary, src_dir_fd=other, dst_dir_fd=folder, follow_symlinks=False)
        else:
            raise Refused(f"archive: {_safe(member.name)} is a device or a pipe; refused")


def _parts(name: str) -> list[str]:
    """Return the path components of a member's name. Refused: the name leads out of the folder."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise Refused(f"archive: {_safe(name)} leads out of the folder; unpacking stopped")
    return parts


def _check_link(parts: list[str], target: str) -> None:
    """Check a symbolic link. Refused: it points, or may point, out of the target folder.

    Only a leading `..` certainly means the folder above: a `..` after a name may follow a link of that name.
    """
    steps = [step for step in target.split("/") if step not in ("", ".")]
    up = next((number for number, step in enumerate(steps) if step != ".."), len(steps))
    if target.startswith("/") or up > len(parts) - 1 or ".." in steps[up:]:
        name = "/".join(parts)
        raise Refused(
            f"archive: {_safe(name)} links to {_safe(target)}, which may be outside the folder; unpacking stopped"
        )


@contextmanager
def _open_beneath(path: Path) -> Iterator[int]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NotFound(f"{path}: folder not found; create it first") from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _parent(root: int, parts: list[str]) -> Iterator[int]:
    """Open the folder of the last path component, creating folders on the way. No link is followed."""
    descriptor = os.dup(root)
    try:
        for part in parts[:-1]:
            with suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=descriptor)
            try:
                deeper = os.open(part, _FOLDER, dir_fd=descriptor)
            except (NotADirectoryError, OSError) as error:
                where = "/".join(parts)
                raise Refused(
                    f"archive: {_safe(where)}: {_safe(part)} exists and is not a folder ({error.strerror}); move it"
                    " away first"
                ) from None
            os.close(descriptor)
            descriptor = deeper
        yield descriptor
    finally:
        os.close(descriptor)


def _make_folder(folder: int, name: str, mode: int) -> None:
    try:
        os.mkdir(name, (mode & 0o777) | 0o700, dir_fd=folder)
    except FileExistsError:
        if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise Refused(f"archive: {_safe(name)}: a file or link of this name is in the way; move it away") from None


def _write(folder: int, name: str, content: IO[bytes], mode: int, progress: Progress) -> None:
    with _replacing(folder, name) as temporary:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(temporary, flags, 0o600, dir_fd=folder), "wb") as file:
            while data := content.read(CHUNK):
                file.write(data)
                progress(len(data))
            os.fchmod(file.fileno(), mode & 0o777)


@contextmanager
def _replacing(folder: int, name: str) -> Iterator[str]:
    """Yield a temporary name in the same folder, and rename it to `name` on success.

    The replacement is atomic: readers see the old file or the complete new one.
    """
    temporary = f".{secrets.token_hex(8)}.part"
    try:
        yield temporary
        try:
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except IsADirectoryError:
            raise Refused(f"archive: {_safe(name)}: a folder of this name is in the way; move it away") from None
        with suppress(FileNotFoundError):  # both names are hard links to one file: rename does nothing then
            os.unlink(temporary, dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise


def _safe(name: str) -> str:
    return repr(name if len(name) <= 200 else name[:200] + "…")
