"""A repository in a folder: `{root}/{group}/{name}/{version}/` holds `artifact.json` and the file.

The folder of a version is written to disk completely under a temporary name, and then renamed. So it exists completely
or not at all, and of two concurrent publishers of the same version the first one wins. `index.json` lists all
artifacts, for readers over HTTP.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from hostler.drivers.artifacts.metadata import (
    DESCRIPTION,
    INDEX,
    MAX_INFO,
    MAX_SIZE,
    check_info,
    decode_info,
    in_order,
    parse_artifact,
)
from hostler.errors import Conflict, Damaged, HostlerError, Invalid, NotFound, Refused, Unavailable
from hostler.kit.clock import SystemClock
from hostler.kit.fsync import sync_folder
from hostler.ports.slices import ArtifactInfo

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from hostler.kit.clock import Clock

CHUNK = 1024 * 1024
_DRAFT = ".draft-"


class FolderArtifacts:
    """Any number of processes may use the folder at the same time. The first publish creates it."""

    def __init__(self, root: Path, *, clock: Clock | None = None) -> None:
        self.root = root
        self._clock = clock or SystemClock()

    async def find(self, artifact: str) -> ArtifactInfo:
        """Return the metadata of an artifact."""
        return await asyncio.to_thread(self._find, artifact)

    async def list(self, base: str = "") -> Sequence[ArtifactInfo]:
        """Return all readable artifacts; a damaged one is reported when it is requested."""
        return await asyncio.to_thread(self._list, base)

    async def fetch(self, artifact: str, to: Path) -> ArtifactInfo:
        """Copy its file into `to`."""
        return await asyncio.to_thread(self._fetch, artifact, to)

    async def publish(self, info: ArtifactInfo, source: Path) -> ArtifactInfo:
        """Publish an artifact. Invalid: `info` does not describe that file."""
        return await asyncio.to_thread(self._publish, info, source)

    # Internal

    def _place(self, artifact: str) -> Path:
        found = parse_artifact(artifact)
        return self.root / found.group / found.name / found.version

    def _find(self, artifact: str) -> ArtifactInfo:
        place = self._place(artifact)
        with translate_file_errors(self.root):
            try:
                data = _small(place / DESCRIPTION)
            except (FileNotFoundError, NotADirectoryError):
                raise NotFound(
                    f"artifact {artifact}: not in {self.root}, the repository of this machine; publish it with"
                    " hostler slice push, or, if it was published on another machine, set artifacts to one repository"
                    " for all machines"
                ) from None
        return decode_info(data, artifact, str(place / DESCRIPTION))

    def _list(self, base: str) -> Sequence[ArtifactInfo]:
        found: list[ArtifactInfo] = []
        with translate_file_errors(self.root):
            for group in _folders(self.root):
                for name in _folders(self.root / group):
                    if base and base != f"{group}:{name}":
                        continue
                    for version in _folders(self.root / group / name):
                        with suppress(Refused):
                            found.append(self._find(f"{group}:{name}:{version}"))
        return in_order(found)

    def _fetch(self, artifact: str, to: Path) -> ArtifactInfo:
        info = self._find(artifact)
        source = self._place(artifact) / info.file
        with translate_file_errors(self.root):
            try:
                descriptor = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                raise Damaged(f"artifact {artifact}: its file {source} is missing; publish it again") from None
        with os.fdopen(descriptor, "rb") as file:
            with translate_file_errors(to):
                to.mkdir(parents=True, exist_ok=True)
            with arriving(to, info) as out:
                while chunk := self._read(file):
                    out.take(chunk)
        return info

    def _read(self, file: BinaryIO) -> bytes:
        with translate_file_errors(self.root):
            return file.read(CHUNK)

    def _publish(self, info: ArtifactInfo, source: Path) -> ArtifactInfo:
        if not info.published_at:
            info = msgspec.structs.replace(info, published_at=self._clock.wall())
        place = self._place(check_info(info).artifact)
        with translate_file_errors(self.root):
            _folder_there(self.root)
            with self._draft() as draft:
                _copy_file(source, draft / info.file, info)
                write_synced(draft / DESCRIPTION, msgspec.json.format(msgspec.json.encode(info)))
                draft.chmod(0o755)
                sync_folder(draft)
                _folder_there(place.parent)
                with self._lock():
                    info = self._publish_draft(info, draft, place)
                    self._index()
        return info

    def _publish_draft(self, info: ArtifactInfo, draft: Path, place: Path) -> ArtifactInfo:
        try:
            draft.rename(place)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        else:
            sync_folder(place.parent)
            return info
        try:
            there = self._find(info.artifact)
        except (Damaged, NotFound):
            return self._repair(info, draft, place)
        if there.sha256 != info.sha256:
            raise Conflict(
                f"artifact {info.artifact}: another file is published under that name ({there.sha256[:12]}…, and not"
                f" {info.sha256[:12]}…); publish this one as another version"
            )
        if not _is_whole(place / there.file, there):
            (draft / info.file).replace(place / there.file)
            sync_folder(place)
        return there

    def _repair(self, info: ArtifactInfo, draft: Path, place: Path) -> ArtifactInfo:
        """Repair a version whose description is lost.

        Conflict: it may have been another file, as far as can be known.
        """
        whole = _is_whole(place / info.file, info)
        known = self._read_index().get(info.artifact)
        others = [name for name in os.listdir(place) if name not in (DESCRIPTION, info.file)]
        same = known == info.sha256 if known else whole or not (others or (place / info.file).exists())
        if not same:
            raise Conflict(
                f"artifact {info.artifact}: {place / DESCRIPTION} is lost, and another file may have been"
                " published there; remove that folder, or publish this one as another version"
            )
        if not whole:
            (draft / info.file).replace(place / info.file)
        (draft / DESCRIPTION).replace(place / DESCRIPTION)
        sync_folder(place)
        return info

    def _read_index(self) -> dict[str, str]:
        """Return checksums by artifact from the index, which may be older than the folder."""
        try:
            found = msgspec.json.decode((self.root / INDEX).read_bytes(), type=list[ArtifactInfo])
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return {}
        return {info.artifact: info.sha256 for info in found}

    def _index(self) -> None:
        """Write the index for web servers. If a publisher is killed before this, the next one writes it."""
        everything = msgspec.json.encode(self._list(""))
        fresh = self.root / f"{_DRAFT}{secrets.token_hex(4)}.json"
        try:
            write_synced(fresh, everything)
            fresh.replace(self.root / INDEX)
        finally:
            fresh.unlink(missing_ok=True)
        sync_folder(self.root)

    @contextmanager
    def _draft(self) -> Iterator[Path]:
        """Yield a folder that no other process touches while this one lives. Drafts of dead processes are deleted."""
        with self._lock():
            for name in sorted(os.listdir(self.root)):
                if name.startswith(_DRAFT):
                    _clear(self.root / name)
            draft = self.root / f"{_DRAFT}{secrets.token_hex(8)}"
            draft.mkdir(mode=0o700)
            held = os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            yield draft
        finally:
            shutil.rmtree(draft, ignore_errors=True)
            os.close(held)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Hold the lock of the repository, briefly."""
        descriptor = os.open(self.root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


class IncomingFile:
    """A file that is received in pieces and verified at the end."""

    def __init__(self, file: int, info: ArtifactInfo) -> None:
        self._file, self._info, self._sum = file, info, hashlib.sha256()
        self.size = 0

    def take(self, chunk: bytes) -> None:
        """Write one more piece. Refused: the file is larger than announced."""
        self.size += len(chunk)
        if self.size > self._info.size:
            raise Refused(
                f"artifact {self._info.artifact}: larger than the announced {self._info.size} bytes; publish it again"
            )
        self._sum.update(chunk)
        rest = memoryview(chunk)
        while rest:
            rest = rest[os.write(self._file, rest) :]

    def check(self) -> None:
        """Raise Refused if size or checksum differ."""
        if self.size != self._info.size or self._sum.hexdigest() != self._info.sha256:
            raise Refused(
                f"artifact {self._info.artifact}: wrong checksum ({self.size} bytes,"
                f" sha256 {self._sum.hexdigest()[:12]}…, expected {self._info.size} bytes, {self._info.sha256[:12]}…);"
                " publish it again"
            )


@contextmanager
def arriving(to: Path, info: ArtifactInfo) -> Iterator[IncomingFile]:
    """Receive the file of `info`: at the end it is in `to` under its name, complete and verified, or nothing is."""
    fresh = to / f"{_DRAFT}{secrets.token_hex(8)}"
    with translate_file_errors(to):
        file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            arrival = IncomingFile(file, info)
            yield arrival
            arrival.check()
            os.fsync(file)
            fresh.replace(to / info.file)
        finally:
            os.close(file)
            fresh.unlink(missing_ok=True)
        sync_folder(to)


@contextmanager
def translate_file_errors(where: Path) -> Iterator[None]:
    """Translate file system errors."""
    try:
        yield
    except HostlerError:
        raise
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ELOOP):
            raise Refused(
                f"artifacts {where}: {error.strerror}; use a folder of your own, or the account that owns this one"
            ) from None
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "free some space there, then try again" if full else "check that disk, then try again"
        raise Unavailable(f"artifacts {where}: {error.strerror or error}; {advice}") from None


def checksum_of(path: Path, most: int = MAX_SIZE) -> tuple[str, int]:
    """Return SHA-256 and size of a file. Invalid: it is larger than `most`."""
    found, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            size += len(chunk)
            if size > most:
                raise Invalid(f"{path}: larger than {most} bytes; leave out what the slice does not need")
            found.update(chunk)
    return found.hexdigest(), size


def write_synced(path: Path, data: bytes) -> None:
    """Write a new file and sync it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "wb") as out:
        out.write(data)
        out.flush()
        os.fchmod(out.fileno(), 0o644)
        os.fsync(out.fileno())


def _copy_file(source: Path, to: Path, info: ArtifactInfo) -> None:
    try:
        file = source.open("rb")
    except OSError as error:
        raise Invalid(f"{source}: cannot be read: {error.strerror}") from None
    with file, arriving(to.parent, info) as arrival:
        try:
            while chunk := file.read(CHUNK):
                arrival.take(chunk)
            arrival.check()
        except Refused as error:  # the repository is fine: the file is not the one that was described
            raise Invalid(f"{source}: {error}") from None
    to.chmod(0o644)


def _is_whole(path: Path, info: ArtifactInfo) -> bool:
    try:
        return not path.is_symlink() and checksum_of(path) == (info.sha256, info.size)
    except (OSError, Invalid):
        return False


def _small(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(MAX_INFO + 1)
    if len(data) > MAX_INFO:
        raise Damaged(f"{path}: larger than {MAX_INFO} bytes; publish the artifact again")
    return data


def _folders(path: Path) -> Sequence[str]:
    """Return names of folders; hidden ones are not part of the repository."""
    try:
        with os.scandir(path) as found:
            return sorted(one.name for one in found if one.name[0] != "." and one.is_dir(follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return ()


def _folder_there(path: Path) -> None:
    """Create the folder and its parents so that they survive a power failure."""
    if path.is_dir():
        return
    _folder_there(path.parent)
    with suppress(FileExistsError):
        path.mkdir(mode=0o755)
    sync_folder(path.parent)


def _clear(path: Path) -> None:
    """Delete a draft, unless a live process holds it."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:  # its publisher has just finished
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    except BlockingIOError:
        return
    finally:
        os.close(descriptor)
