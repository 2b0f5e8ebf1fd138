"""The files of the audit log in a data folder: `audit/2026-11-15.jsonl`, readable by their owner only."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import secrets
import socket
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import msgspec

from hostler.drivers.audit.chain import Header, chain_of, header_line, line_of, read_header, read_line
from hostler.errors import Damaged, Unavailable
from hostler.keys.families import AUDIT
from hostler.kit.fsync import sync_folder
from hostler.ports.audit_files import DayFile, FiledLine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from typing import TypeVar

    from hostler.ports.store import KeyValue

    T = TypeVar("T")

SUFFIX = ".jsonl"
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_RECENT = 2_000
"""Number of lines at the end of the files whose keys are remembered: more than one interrupted call can leave."""
_BLOCK = 65_536


class _Tail(msgspec.Struct):
    """The end of the newest file."""

    day: str
    size: int
    lines: int
    chain: str
    recent: deque[str]


class AuditFolder:
    """The files at `path`, which is created with the first line. Without `threads`, its work blocks the event loop."""

    def __init__(self, path: Path, *, threads: bool = True) -> None:
        self._path, self._threads = path, threads
        self._tail: _Tail | None = None
        self._place = ""

    def __repr__(self) -> str:
        return f"AuditFolder({str(self._path)!r})"

    @property
    def place(self) -> str:
        """The content of the file `place`, which is created on first use."""
        if not self._place:
            with self._translate_errors():
                self._place = self._name_of_folder()
        return self._place

    @property
    def host(self) -> str:
        return socket.gethostname()

    @property
    def folder(self) -> str:
        return str(self._path)

    def files(self) -> list[Path]:
        """Return the files, oldest first."""
        return [self._file(day) for day in self._days()]

    async def append(self, lines: Sequence[KeyValue]) -> tuple[DayFile, ...]:
        return await self._aside(lambda: self._append(lines))

    async def newest(self) -> DayFile | None:
        return await self._aside(self._newest)

    async def days(self) -> tuple[str, ...]:
        return await self._aside(self._days)

    async def read(self, day: str, start: int, limit: int) -> list[FiledLine]:
        return await self._aside(lambda: self._read(day, start, limit))

    async def read_back(self, day: str, end: int | None, limit: int) -> list[FiledLine]:
        return await self._aside(lambda: self._read_back(day, end, limit))

    # Internal, in a thread

    async def _aside(self, work: Callable[[], T]) -> T:
        with self._translate_errors():
            return await asyncio.to_thread(work) if self._threads else work()

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Unavailable(
                f"audit files {self._path}: {error.strerror or error}; free some space or give hostler write permission"
            ) from None

    def _name_of_folder(self) -> str:
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = self._path / "place"
        with suppress(FileNotFoundError):
            return file.read_text(encoding="ascii").strip()
        fresh = self._path / f".place.{secrets.token_hex(4)}"
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as out:
            out.write(secrets.token_hex(8) + "\n")
            out.flush()
            os.fsync(out.fileno())
        with suppress(FileExistsError):  # another process was first
            os.link(fresh, file)
        fresh.unlink()
        sync_folder(self._path)
        return file.read_text(encoding="ascii").strip()

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Lock the files against other processes: the previous leader on this host may not have ended yet."""
        descriptor = os.open(self._path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _file(self, day: str) -> Path:
        return self._path / f"{day}{SUFFIX}"

    def _days(self) -> tuple[str, ...]:
        with suppress(FileNotFoundError):
            names = (name.removesuffix(SUFFIX) for name in os.listdir(self._path) if name.endswith(SUFFIX))
            return tuple(sorted(name for name in names if _DAY.fullmatch(name)))
        return ()

    def _newest(self) -> DayFile | None:
        tail = self._load_tail()
        return None if tail is None else DayFile(tail.day, tail.lines, tail.chain)

    def _append(self, lines: Sequence[KeyValue]) -> tuple[DayFile, ...]:
        place = self.place
        with self._lock():
            tail = self._load_tail()
            known = set() if tail is None else set(tail.recent)
            fresh: dict[str, list[KeyValue]] = {}
            last = "" if tail is None else tail.day
            for kv in lines:
                if kv.key not in known:
                    last = max(last, (AUDIT.match(kv.key) or {"day": last})["day"])
                    fresh.setdefault(last, []).append(kv)
            written: dict[str, DayFile] = {}
            if tail is not None:
                written[tail.day] = DayFile(tail.day, tail.lines, tail.chain)
            for day, some in fresh.items():
                tail = self._write_lines(tail, day, place, some)
                written[day] = DayFile(day, tail.lines, tail.chain)
        return tuple(written.values())

    def _write_lines(self, tail: _Tail | None, day: str, place: str, lines: list[KeyValue]) -> _Tail:
        begun = tail is None or tail.day != day
        data = bytearray()
        if begun:
            before = Header(day, place, "", "") if tail is None else Header(day, place, tail.day, tail.chain)
            data += header_line(before)
            tail = _Tail(day, 0, 0, before.chain, deque(maxlen=_RECENT) if tail is None else tail.recent)
        chain = tail.chain  # type: ignore[union-attr]
        for kv in lines:
            line, chain = line_of(kv, chain)
            data += line
        self._tail = None  # until the write is known to be durable
        size = self._write_durably(day, begun, bytes(data), 0 if begun else tail.size)  # type: ignore[union-attr]
        recent = deque([*tail.recent, *(kv.key for kv in lines)], maxlen=_RECENT)  # type: ignore[union-attr]
        self._tail = _Tail(day, size, tail.lines + len(lines), chain, recent)  # type: ignore[union-attr]
        return self._tail

    def _write_durably(self, day: str, begun: bool, data: bytes, at: int) -> int:
        """Write after the existing lines, over the rest of an interrupted write, and return the file's new size."""
        descriptor = os.open(self._file(day), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(descriptor, at)
            offset = at
            while offset < at + len(data):
                offset += os.pwrite(descriptor, data[offset - at :], offset)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if begun:
            sync_folder(self._path)
        return at + len(data)

    def _load_tail(self) -> _Tail | None:
        """Return the end of the newest file, read again if another process has appended since."""
        days = self._days()
        for number, day in reversed(tuple(enumerate(days))):
            size, tail = self._file(day).stat().st_size, self._tail
            if tail is None or tail.day != day or size != tail.size:
                self._tail = tail = self._scan_day(day)
                if number and tail.lines < _RECENT:  # an interrupted call may have started in the previous file
                    with suppress(Damaged):  # `hostler audit verify` reports it
                        before = self._scan_day(days[number - 1]).recent
                        tail.recent = deque([*before, *tail.recent], maxlen=_RECENT)
            if tail.size:  # else a crash left it before its first line was durable
                return tail
        return None

    def _scan_day(self, day: str) -> _Tail:
        recent: deque[str] = deque(maxlen=_RECENT)
        lines, chain, size = 0, "", 0
        with self._file(day).open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                if size == 0:
                    chain = self._parse_line(day, read_header, line).chain
                else:
                    lines, chain = lines + 1, chain_of(line) or chain
                    recent.append(self._filed_line(day, line, size).kv.key)
                size += len(line)
        return _Tail(day, size, lines, chain, recent)

    def _filed_line(self, day: str, line: bytes, at: int) -> FiledLine:
        return FiledLine(self._parse_line(day, read_line, line), at, at + len(line))

    def _parse_line(self, day: str, read: Callable[[bytes], T], line: bytes) -> T:
        """Parse a line. Damaged: the file was changed."""
        try:
            return read(line)
        except ValueError as error:
            raise Damaged(
                f"audit file {self._file(day)}: a line cannot be read ({error}); run hostler audit verify, and restore"
                " the file, or move the folder away: a new one is created"
            ) from None

    def _read(self, day: str, start: int, limit: int) -> list[FiledLine]:
        found: list[FiledLine] = []
        with suppress(FileNotFoundError), self._file(day).open("rb") as file:
            at = start or len(file.readline())
            file.seek(at)
            while len(found) < limit and (line := file.readline()).endswith(b"\n"):
                found.append(self._filed_line(day, line, at))
                at += len(line)
        return found

    def _read_back(self, day: str, end: int | None, limit: int) -> list[FiledLine]:
        found: list[FiledLine] = []
        with suppress(FileNotFoundError), self._file(day).open("rb") as file:
            first = len(file.readline())
            at = os.fstat(file.fileno()).st_size if end is None else end
            rest = b""
            while at > first and len(found) < limit:
                low = max(first, at - len(rest) - _BLOCK)
                file.seek(low)
                block = file.read(at - low)
                lines = block.splitlines(keepends=True)
                if low > first:  # the block may begin in the middle of a line
                    rest, lines = lines[0], lines[1:]
                if not lines:
                    continue
                for line in reversed(lines[-(limit - len(found)) :]):
                    at -= len(line)
                    if line.endswith(b"\n"):
                        found.append(self._filed_line(day, line, at))
                rest = b""
        return found
