"""The open file: its lock and its connections, and how to open them without waiting for ever."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import apsw

from hostler.drivers.store.local_store import HostTime
from hostler.drivers.store.sqlite import schema
from hostler.drivers.store.sqlite.reader import Reader
from hostler.drivers.store.sqlite.writer import Writer
from hostler.errors import Damaged, Invalid

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from hostler.kit.clock import Clock


class OpenFiles:
    """The resources of one open store."""

    def __init__(self, path: Path, timeout: float, clock: Clock) -> None:
        if path.exists() and not path.is_file():
            raise Invalid(f"{path}: not a regular file; name another")  # SQLite would lose data in a pipe
        time = HostTime(clock)
        self._path = path
        self._lock = schema.open_lock(path)
        self._connected: list[Reader | Writer] = []
        try:
            schema.prepare(path, self._lock, time.boot)
            found = path.stat()
            self._inode = (found.st_dev, found.st_ino)
            self.writer = Writer(path, schema.connect(path, busy_timeout=timeout), clock, time)
            self._connected.append(self.writer)
            if not self.writer.of_this_boot():
                with self.turn():
                    self.writer.adopt_boot()
            # The first is used on the event loop, which must not wait long; the second in a thread.
            self.reader = Reader(path, schema.connect(path, busy_timeout=min(1.0, timeout)))
            self._connected.append(self.reader)
            self.far_reader = Reader(path, schema.connect(path, busy_timeout=timeout))
            self._connected.append(self.far_reader)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the write lock, if the file is still the one that was opened."""
        with schema.write_turn(self._path, self._lock):
            try:
                found = self._path.stat()
            except OSError as error:
                raise Damaged(f"{self._path}: the file is gone ({error.strerror}); close the store") from error
            if (found.st_dev, found.st_ino) != self._inode:
                raise Damaged(f"{self._path}: replaced by another file; nothing was written, open it again")
            yield

    def close(self, *, writer: bool = True) -> None:
        """Close everything; without `writer`, not what the writer uses, because its hanging thread may still use it."""
        for connected in reversed(self._connected):  # the writer last: the last connection moves the WAL into the file
            if connected is getattr(self, "writer", None) and not writer:
                continue
            try:
                connected.close()
            except apsw.Error:
                continue  # a failed last checkpoint is done at the next opening
        if writer:
            os.close(self._lock)


def open_in_thread(open_files: Callable[[], OpenFiles], loop: asyncio.AbstractEventLoop) -> asyncio.Future[OpenFiles]:
    """Open in a daemon thread, which may wait for a lock without blocking the event loop or the program's end.

    Files that are opened after the future was cancelled are closed.
    """
    opened: asyncio.Future[OpenFiles] = loop.create_future()

    def finish(files: OpenFiles | None, error: BaseException | None) -> None:
        if opened.done():
            if files is not None:
                files.close()
        elif files is not None:
            opened.set_result(files)
        elif error is not None:
            opened.set_exception(error)

    def run() -> None:
        files, error = None, None
        try:
            files = open_files()
        except BaseException as caught:  # noqa: BLE001 - the waiting caller must get the error
            error = caught
        try:
            loop.call_soon_threadsafe(finish, files, error)
        except RuntimeError:  # the event loop is gone, and the waiting caller with it
            if files is not None:
                files.close()

    threading.Thread(target=run, name="sqlite store: opening", daemon=True).start()
    return opened
