"""A server that all workers of one test run share, because each of its own would cost too much.

The worker that needs it first starts it, and stops it at its end once nobody else holds it. Files in a folder that is
named for the run tell the others where it is; their locks end with the processes that hold them, however those end.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hostler.testing.ttl_servers import TtlServer

PATIENCE = 600.0
"""Seconds for which the starter waits at its end for others that use the server."""


class SharedServer:
    """One kind of server. Held from `hold` to `release`."""

    def __init__(self, start: Callable[[], TtlServer]) -> None:
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or f"pid{os.getpid()}"
        self._folder = Path(tempfile.gettempdir()) / f"hostler-run-{run}"
        self._start = start
        self._users: IO[bytes] | None = None
        self.started: TtlServer | None = None
        """The server, if this process started it."""
        self.ports: list[int] = []

    def hold(self) -> list[int]:
        """The ports of the server, which stands until `release`."""
        while self._users is None:
            self._folder.mkdir(exist_ok=True)
            with self._locked() as is_there:
                if not is_there:
                    continue  # who had the last one took the folder away while we came
                self.ports = self._found() or self._begun()
                self._users = (self._folder / f"users-{self.ports[0]}").open("ab")  # of this very server
                fcntl.flock(self._users, fcntl.LOCK_SH)
        return self.ports

    def release(self) -> None:
        """Let go; whoever started it waits for the others and stops it. Twice is fine."""
        if self._users is None:
            return
        if self.started is not None:
            with self._locked():
                self._ports_file.unlink(missing_ok=True)  # who comes now starts another one
            self._wait_alone(self._users)
            self.started.stop()
            self.started = None
            with self._locked() as is_there:
                if is_there and not self._ports_file.exists():
                    shutil.rmtree(self._folder, ignore_errors=True)
        self._users.close()
        self._users = None

    @property
    def _ports_file(self) -> Path:
        return self._folder / "ports"

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """One at a time. False: the folder was taken away meanwhile."""
        path = self._folder / "lock"
        try:
            lock = path.open("ab")
        except FileNotFoundError:
            yield False
            return
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self._is(path, lock)

    @staticmethod
    def _is(path: Path, opened: IO[bytes]) -> bool:
        try:
            return path.stat().st_ino == os.fstat(opened.fileno()).st_ino
        except FileNotFoundError:
            return False

    def _found(self) -> list[int]:
        try:
            return [int(port) for port in self._ports_file.read_text().split()]
        except FileNotFoundError:
            return []

    def _begun(self) -> list[int]:
        server = self._start()
        server.__enter__()
        self.started = server
        self._ports_file.write_text(" ".join(map(str, server.ports)))
        return server.ports

    def _wait_alone(self, users: IO[bytes]) -> None:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.1)
            else:
                return
