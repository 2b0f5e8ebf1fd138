"""A backup of a store in one file of JSON lines.

    {"hostler-backup":1,"prefix":"","revision":812,"engine":"sqlite","created":"2031-05-04T12:00:00Z"}
    {"key":"/a","text":"a value that is UTF-8"}
    {"key":"/b","base64":"/wD+"}
    {"keys":2,"sha256":"…"}

The first line is the header. One line for each key follows, in key order, all as of one revision. The last line holds
the number of keys and the SHA-256 of every byte before it. A file whose name ends in `.gz` is compressed with gzip.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import os
import tempfile
from contextlib import aclosing, contextmanager
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any

import msgspec

from hostler.errors import Damaged, Invalid, NotFound, Refused
from hostler.ports.store import KeyValue, check_put

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator
    from pathlib import Path

    from hostler.engine.transfer.copy import StoreSource

LONGEST_LINE = 16 * 1024 * 1024


class Header(msgspec.Struct, frozen=True):
    """The first line."""

    format: int = msgspec.field(name="hostler-backup")
    prefix: str
    revision: int
    engine: str
    created: str


class BackupLine(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The line of a key; the value is text, or else base64."""

    key: str
    text: str | None = None
    base64: str | None = None


class Trailer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last line."""

    keys: int
    sha256: str


_encode = msgspec.json.Encoder().encode
_line = msgspec.json.Decoder(BackupLine)


async def write_backup(
    path: Path, source: StoreSource, *, prefix: str, engine: str, force: bool, report: Callable[[int], None]
) -> Trailer:
    """Write the records of `source` to `path`, completely or not at all.

    Invalid: the file exists, and `force` is False.
    """
    _check_free(path, force=force)
    created = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    header = Header(1, prefix, source.revision, engine, created)
    with _whole_file(path) as raw, _pack(raw, path, "wb") as file:
        total, count = hashlib.sha256(), 0

        def add(line: bytes) -> None:
            total.update(line)
            file.write(line)

        add(_encode(header) + b"\n")
        async with aclosing(source.entries()) as entries:
            async for kv in entries:
                add(_encode(_to_line(kv)) + b"\n")
                count += 1
                if count % 1000 == 0:
                    report(count)
        trailer = Trailer(count, total.hexdigest())
        file.write(_encode(trailer) + b"\n")
    return trailer


def _check_free(path: Path, *, force: bool) -> None:
    if path.exists() and not force:
        raise Invalid(f"{path}: file exists; choose another name, or overwrite it with --force")


@contextmanager
def _whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Write a temporary file, and rename it once all of it is on disk.

    Backups hold secrets, so only the owner can read the file.
    """
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def _pack(raw: IO[bytes], path: Path, mode: Any) -> Iterator[IO[bytes]]:
    if path.suffix != ".gz":
        yield raw
        return
    with gzip.GzipFile(filename="", fileobj=raw, mode=mode, compresslevel=6, mtime=0) as file:
        yield file  # type: ignore[misc]


def _to_line(kv: KeyValue) -> BackupLine:
    try:
        return BackupLine(kv.key, text=kv.value.decode())
    except UnicodeDecodeError:
        return BackupLine(kv.key, base64=base64.b64encode(kv.value).decode())


class Backup:
    """A backup file, verified completely before anything is read from it. A source for `fill`."""

    def __init__(self, path: Path, prefix: str) -> None:
        """Read and verify the whole file.

        NotFound: there is no such file. Damaged: its content is not as it was written.
        """
        self._path, self._prefix = path, prefix
        self.header, self.trailer = self._check()
        self.name = f"backup sha256:{self.trailer.sha256}"
        self.revision, self.created = self.header.revision, self.header.created

    async def entries(self) -> AsyncGenerator[KeyValue, None]:
        for kv in self._read():
            if kv.key.startswith(self._prefix):
                yield kv

    def _check(self) -> tuple[Header, Trailer]:
        for _ in self._read():
            pass
        return self._header, self._trailer

    def _read(self) -> Iterator[KeyValue]:
        """Yield every key; raise, at the end at the latest, if the file is incomplete or damaged."""
        total, count, last = hashlib.sha256(), 0, ""
        with self._lines() as lines:
            line = next(lines, b"")
            self._header = self._read_header(line)
            total.update(line)
            for number, line in enumerate(lines, start=2):
                if not line.endswith(b"\n"):
                    break
                if line.startswith(b'{"keys":'):
                    self._trailer = self._read_trailer(line, count, total.hexdigest())
                    if next(lines, None) is not None:
                        raise self._damage(f"line {number + 1}: data after the last line")
                    return
                kv = self._read_line(line, number)
                if kv.key <= last:
                    raise self._damage(f"line {number}: keys out of order")
                total.update(line)
                count, last = count + 1, kv.key
                yield kv
        raise self._damage("it is truncated")

    @contextmanager
    def _lines(self) -> Iterator[Iterator[bytes]]:
        try:
            with self._path.open("rb") as raw, _pack(raw, self._path, "rb") as file:
                yield iter(lambda: file.readline(LONGEST_LINE), b"")
        except FileNotFoundError:
            raise NotFound(f"{self._path}: file not found; name a backup") from None
        except (EOFError, gzip.BadGzipFile, gzip.zlib.error) as error:  # type: ignore[attr-defined]
            raise self._damage(str(error)) from None

    def _read_header(self, line: bytes) -> Header:
        try:
            header = msgspec.json.decode(line, type=Header)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise Damaged(f"{self._path}: not a Hostler backup; nothing was written") from None
        if header.format != 1:
            raise Invalid(f"{self._path}: written by a newer Hostler (format {header.format}); update, then restore")
        return header

    def _read_line(self, line: bytes, number: int) -> KeyValue:
        try:
            found = _line.decode(line)
            if (found.text is None) == (found.base64 is None):
                raise self._damage(f"line {number}: must have a text or a base64")
            if found.text is not None:
                value = found.text.encode()
            else:
                value = base64.b64decode(found.base64 or "", validate=True)
            check_put(found.key, value)
        except (msgspec.DecodeError, ValueError) as error:
            raise self._damage(f"line {number}: {error}") from None
        except Refused as error:
            raise error if isinstance(error, Damaged) else self._damage(f"line {number}: {error}") from None
        return KeyValue(found.key, value, 0, 0, 0)

    def _read_trailer(self, line: bytes, count: int, total: str) -> Trailer:
        try:
            trailer = msgspec.json.decode(line, type=Trailer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._damage(f"last line: {error}") from None
        if trailer != Trailer(count, total):
            raise self._damage("its digest does not match its content")
        return trailer

    def _damage(self, why: str) -> Damaged:
        return Damaged(f"{self._path}: damaged ({why}); nothing was written, use another backup")
