"""Copies or unpacks an image into a scratch folder, hashing it on the way and preserving holes."""

from __future__ import annotations

import asyncio
import bz2
import gzip
import hashlib
import lzma
import os
import stat
import zlib
from typing import IO, TYPE_CHECKING

from hostler.errors import NotFound, Refused, TooLarge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from hostler.ports.machine_driver import Progress

CHUNK = 2**20
_ZEROS = bytes(CHUNK)
_UNPACK_MEMORY = 512 * 2**20
"""Maximum memory for the dictionary of a compressed file."""

_PACKED = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\x00": "xz", b"BZh": "bzip2"}


def compression_of(path: Path) -> str | None:
    """Return the compression of a file, if it can be unpacked here; None: not compressed."""
    with path.open("rb") as file:
        head = file.read(6)
    return next((kind for magic, kind in _PACKED.items() if head.startswith(magic)), None)


def open_source(path: Path, subject: str) -> IO[bytes]:
    """Open a file named by a user. NotFound. Refused: it is a folder, a pipe or a device, or may not be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise NotFound(f"{subject}: no such file; check the path") from None
    except OSError as error:
        raise Refused(f"{subject}: {error.strerror}; check the path and its permissions") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Refused(f"{subject}: not a regular file; name the file of a disk image")
    return os.fdopen(descriptor, "rb")


async def copy_file(source: IO[bytes], target: Path, *, limit: int, subject: str, progress: Progress) -> str:
    """Copy a file; return the sha256 of its bytes. TooLarge: it has more than `limit` bytes."""
    total = os.fstat(source.fileno()).st_size
    if total > limit:
        raise too_large(subject, limit)
    return await _drain(_read(source), target, limit, subject, lambda done: progress("copying", done, total))


async def unpack_file(source: Path, target: Path, kind: str, *, limit: int, subject: str, progress: Progress) -> str:
    """Unpack a file; return the sha256 of its content. Refused: it is damaged. TooLarge: more than `limit` bytes."""
    with source.open("rb") as file:
        total = os.fstat(file.fileno()).st_size
        blocks = _unpack(file, kind, subject)
        return await _drain(blocks, target, limit, subject, lambda _: progress("unpacking", file.tell(), total))


def too_large(subject: str, limit: int) -> TooLarge:
    return TooLarge(f"{subject}: it has more than {limit:,} bytes; allow more with --max-size, or use another image")


class Sparse:
    """Writes blocks one after another, and leaves holes for zeros."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")
        self._hash = hashlib.sha256()
        self.length = 0

    def write(self, data: bytes) -> None:
        self._hash.update(data)
        if data == _ZEROS[: len(data)]:
            self._file.seek(len(data), 1)
        else:
            self._file.write(data)
        self.length += len(data)

    def close(self) -> str:
        """Finish; return the sha256 of all blocks."""
        self._file.truncate(self.length)
        self._file.close()
        return self._hash.hexdigest()

    def abandon(self) -> None:
        self._file.close()


async def _drain(blocks: Iterator[bytes], target: Path, limit: int, subject: str, tell: Callable[[int], None]) -> str:
    out = await asyncio.to_thread(Sparse, target)
    try:
        while data := await asyncio.to_thread(next, blocks, b""):
            if out.length + len(data) > limit:
                raise too_large(subject, limit)
            await asyncio.to_thread(out.write, data)
            tell(out.length)
        return await asyncio.to_thread(out.close)
    finally:
        out.abandon()


def _read(file: IO[bytes]) -> Iterator[bytes]:
    while data := file.read(CHUNK):
        yield data


def _unpack(file: IO[bytes], kind: str, subject: str) -> Iterator[bytes]:
    try:
        if kind == "gzip":
            with gzip.GzipFile(fileobj=file) as inside:
                while data := inside.read(CHUNK):
                    yield data
        elif kind == "xz":
            yield from _streams(file, lambda: lzma.LZMADecompressor(memlimit=_UNPACK_MEMORY))
        else:
            yield from _streams(file, bz2.BZ2Decompressor)
    except (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # a disk error, not bad data
            raise
        raise Refused(f"{subject}: cannot be unpacked ({kind}): {error}; get the file again") from None


def _streams(file: IO[bytes], new: Callable[[], lzma.LZMADecompressor | bz2.BZ2Decompressor]) -> Iterator[bytes]:
    """Yield the content of consecutive compressed streams, at most a chunk at a time."""
    waiting = file.read(CHUNK)
    while waiting:
        stream = new()
        while not stream.eof:
            if stream.needs_input and not waiting:
                waiting = file.read(CHUNK)
                if not waiting:
                    raise EOFError("the file ends too early")
            data = stream.decompress(waiting if stream.needs_input else b"", CHUNK)
            waiting = b""
            if data:
                yield data
        waiting = (stream.unused_data or file.read(CHUNK)).lstrip(b"\0")  # xz pads between its streams
