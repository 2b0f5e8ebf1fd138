"""The folder of an instance: the record for the next agent, and the socket of the control connection to the worker."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hostler.drivers.slices.process.process import Mark, deleted_bytes_held
from hostler.errors import Unavailable
from hostler.kit.frames import FrameError, frame, read_frame
from hostler.kit.host import short_path
from hostler.ports.worker_protocol import MAX_LOG, FromWorker, Problem, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.ports.slices import Run
    from hostler.ports.worker_protocol import Control as Question

SOCKET = "control.sock"
MAX_ANSWER = 4 * 1024 * 1024


class NoConnection(Exception):
    """There is no connection, or it ended before the answer."""


class Control:
    """One connection. `changed` receives states that the worker sends unasked."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, changed: Callable[[State], None]
    ) -> None:
        self._reader, self._writer, self._changed = reader, writer, changed
        self._asked: dict[int, asyncio.Future[State | Problem]] = {}
        self._last = 0
        self._is_over = False
        self._listening = asyncio.create_task(self._listen(), name="worker: control")

    @classmethod
    async def connect(cls, folder: Path, changed: Callable[[State], None]) -> Control:
        """Connect to the worker of that folder. Silent: no process listens there."""
        try:
            with short_path(folder, SOCKET) as path:
                reader, writer = await asyncio.open_unix_connection(path)
        except OSError as error:
            raise NoConnection(f"its process cannot be asked: {error.strerror}") from None
        return cls(reader, writer, changed)

    async def ask(self, question: type[Question], *more: object) -> State:
        """Return the answer.

        Silent: there is none, and will be none. Declined: the worker says that it cannot be done.
        """
        found = await self._put(question, *more)
        if isinstance(found, Problem):
            raise Declined(found.why)
        return found

    def tell(self, question: type[Question], *more: object) -> None:
        """Send a request without waiting for an answer."""
        with suppress(NoConnection):
            self._put(question, *more).add_done_callback(_drop_answer)

    def close(self) -> None:
        self._listening.cancel()
        self._end()

    def _put(self, question: type[Question], *more: object) -> asyncio.Future[State | Problem]:
        if self._is_over:
            raise NoConnection("its process ended the connection")
        self._last += 1
        answer: asyncio.Future[State | Problem] = asyncio.get_running_loop().create_future()
        self._asked[self._last] = answer
        self._writer.write(frame(msgspec.msgpack.encode(question(self._last, *more))))
        return answer

    async def _listen(self) -> None:
        try:
            while (payload := await read_frame(self._reader, limit=MAX_ANSWER)) is not None:
                said = msgspec.msgpack.decode(payload, type=FromWorker)
                asked = self._asked.pop(said.number, None)
                if asked is not None and not asked.done():
                    asked.set_result(said)
                elif said.number == 0 and isinstance(said, State):
                    self._changed(said)
        except (FrameError, OSError, msgspec.DecodeError):
            pass
        finally:
            self._end()

    def _end(self) -> None:
        self._is_over = True
        self._writer.close()
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(NoConnection("its process ended the connection"))
                asked.exception()  # mark it as retrieved: the caller may be gone
        self._asked.clear()


class Declined(Exception):
    """The worker says that it cannot be done."""


def _drop_answer(answer: asyncio.Future[State | Problem]) -> None:
    if not answer.cancelled():
        answer.exception()


NOTE = "run.json"
WORK = "work"
TEMPORARY = "tmp"
"""Mounted as /tmp for a confined process."""
MOST_FILES = 100_000
KEPT_LOGS = 200
"""Log files of removed instances that are kept."""
LAST_WORDS = 400
_LOG = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_ODD = re.compile(r"[^A-Za-z0-9._+-]")


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a process. It contains no settings: the worker knows them, and they may be secret."""

    artifact: str
    instance: int
    template: int
    process: Mark
    uid: int | None = None
    groups: tuple[str, ...] = ()
    """Its own control groups."""
    family: str = ""
    """The value that all processes of the instance have in their environment."""
    output: int = -1
    """The worker's descriptor of the pipe that it prints into."""
    confined: bool = False
    """Whether the process is the parent of a worker in separate namespaces."""
    about: str = ""
    """Its user and its limits, for people."""


def name_of(run_id: str) -> str:
    """Return the name of an instance's folder: short and unique."""
    return f"{_ODD.sub('_', run_id)[-60:]}.{hashlib.sha256(run_id.encode()).hexdigest()[:12]}"


class InstanceDir:
    """The folder of one instance."""

    def __init__(self, root: Path, run_id: str) -> None:
        self.name = name_of(run_id)
        self.folder = root / "runs" / self.name
        self.log = root / "logs" / f"{self.name}.log"
        self.older = self.log.with_suffix(".1")
        """The content of the log before it became too long."""

    @classmethod
    def of(cls, root: Path, run: Run) -> InstanceDir:
        return cls(root, run.id)

    def make(self, uid: int | None) -> None:
        """Create an empty folder. Unavailable: it cannot be created."""
        try:
            self.remove()
            self.log.parent.mkdir(mode=0o700, exist_ok=True)
            for name in (WORK, TEMPORARY):
                (self.folder / name).mkdir(parents=True, mode=0o700)
                if uid is not None:
                    os.chown(self.folder / name, uid, uid)
            self.folder.chmod(0o711 if uid is not None else 0o700)
        except OSError as error:
            raise Unavailable(f"{self.folder}: cannot be created: {error.strerror}; check the disk") from None

    def too_large(self, disk_mib: int, pid: int | None = None) -> str:
        """Return why its folders are too large; empty: they are not. Includes deleted files that `pid` has open."""
        most, size, files = disk_mib * 2**20, 0, 0
        folders = [str(self.folder / WORK), str(self.folder / TEMPORARY)]
        if pid is not None:
            with suppress(OSError):
                size = deleted_bytes_held(pid, os.stat(folders[0]).st_dev)
        while folders:
            folder = folders.pop()
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        files += 1
                        with suppress(OSError):
                            size += entry.stat(follow_symlinks=False).st_blocks * 512
                            if entry.is_dir(follow_symlinks=False):
                                folders.append(entry.path)
                        if files > MOST_FILES:
                            return f"its folders hold more than {MOST_FILES:,} files"
            except PermissionError:
                shown = os.path.relpath(folder, self.folder)
                return f"its folder {shown!r} cannot be read, so its size cannot be limited; leave it readable"
            except OSError:
                continue  # it was deleted during the scan
            if size > most:
                return f"its folders hold more than {disk_mib:,} MiB, the limit of slice_disk_mib"
        return ""

    def listen(self) -> socket.socket:
        """Return the control socket of its worker, which inherits it."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with short_path(self.folder, SOCKET) as path:
                listener.bind(path)
            (self.folder / SOCKET).chmod(0o600)
            listener.listen(16)
        except OSError as error:
            listener.close()
            raise Unavailable(f"{self.folder}: no socket can be created there: {error.strerror}") from None
        return listener

    def open_logs(self) -> tuple[int, int]:
        """Open the current and the previous log file, which the worker inherits. Unavailable: they cannot be opened."""
        found: list[int] = []
        try:
            found.append(os.open(self.log, _LOG, 0o600))
            found.append(os.open(self.older, _LOG, 0o600))
        except OSError as error:
            for descriptor in found:
                os.close(descriptor)
            raise Unavailable(f"{self.log}: cannot be written: {error.strerror}; check the disk") from None
        return found[0], found[1]

    def append(self, text: bytes) -> None:
        """Append output that a worker did not write itself. The log does not exceed its limit."""
        with suppress(OSError), self.log.open("ab") as file:
            if file.tell() + len(text) > MAX_LOG:
                file.truncate(0)
            file.write(text[-MAX_LOG:])

    def write(self, note: Note) -> None:
        fresh = self.folder / f"{NOTE}.new"
        try:
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(msgspec.json.encode(note))
            fresh.replace(self.folder / NOTE)
        except OSError as error:
            raise Unavailable(f"{fresh}: cannot be written: {error.strerror}; check the disk") from None

    def remove(self) -> None:
        if self.folder.exists():
            _remove(self.folder)

    def last_words(self) -> str:
        """Return the last line of its log; empty: there is none."""
        text = b""
        for path in (self.older, self.log):  # a line may be split over both
            with suppress(OSError), path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - 4096))
                text += file.read()
        lines = [line.strip() for line in text.decode(errors="replace").splitlines()]
        return next((line[:LAST_WORDS] for line in reversed(lines) if line), "")


def read_notes(root: Path) -> list[Note]:
    """Return the records in all folders; folders without a valid record are deleted."""
    found = []
    for folder in sorted((root / "runs").iterdir()):
        try:
            note = msgspec.json.decode((folder / NOTE).read_bytes(), type=Note)
            if name_of(f"{note.artifact}#{note.instance}") == folder.name:
                found.append(note)
                continue
        except (OSError, msgspec.DecodeError):
            pass  # the agent was killed before it was written: the process never got its order, and has ended too
        _remove(folder)
    return found


def forget_logs(root: Path, kept: set[str]) -> None:
    """Delete all but the latest logs of removed instances; `kept`: the instances that exist."""
    with suppress(OSError):
        logs = [path for path in (root / "logs").iterdir() if path.name.rpartition(".")[0] not in kept]
        for path in sorted(logs, key=lambda path: path.stat().st_mtime)[:-KEPT_LOGS]:
            path.unlink(missing_ok=True)


def _remove(folder: Path) -> None:
    """Delete a folder of a slice whose processes have ended, including what it made unreadable for its own user."""
    folders = [str(folder)] if os.geteuid() != 0 else []
    while folders:
        one = folders.pop()
        with suppress(OSError):
            Path(one).chmod(0o700)
            with os.scandir(one) as entries:
                folders += (entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
    shutil.rmtree(folder, ignore_errors=True)
