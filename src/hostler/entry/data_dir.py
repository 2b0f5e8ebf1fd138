"""The data folder: what one `hostler up` keeps on disk, and who may look at it.

    hostler.db           the embedded store
    machines/NODE/       the machines of a node
    machines.kind        what they are
    images/              what QEMU's machines are made of, for all nodes of the folder
    bridge6              the prefix of our own bridge
    log/hostler.log      the log, kept small by rotation
    admin.token          the first administrator's token
    server               where the API is served, while it is
    up.lock              held by the `up` that runs here
    redis                the Redis that labs are asked for through, while one is used
    replica              under which name that one stands for the leadership
    simulation           what marks the folder of a `hostler sim serve`

Only the owner can read any of it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from hostler.errors import Conflict, Invalid

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OWNER_ONLY = 0o077
"""Nobody else may have any of these rights."""


class DataFolder:
    """The folder at `path`, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def token_file(self) -> Path:
        """The first administrator's token."""
        return self.path / "admin.token"

    @property
    def server_file(self) -> Path:
        """The address of the API, while it is served."""
        return self.path / "server"

    @property
    def redis_file(self) -> Path:
        """The Redis of the control plane that runs here, or ran here last."""
        return self.path / "redis"

    def keep_redis(self, url: str | None) -> None:
        """From now on labs are asked for through this Redis; None: through none."""
        if url is None:
            self.redis_file.unlink(missing_ok=True)
        else:
            self.write(self.redis_file, url)

    @property
    def replica_file(self) -> Path:
        """The name under which the last `up` here stood for the leadership."""
        return self.path / "replica"

    @property
    def simulation_file(self) -> Path:
        """What marks a folder as one of `hostler sim serve`."""
        return self.path / "simulation"

    @property
    def log_file(self) -> Path:
        """The log."""
        return self.path / "log" / "hostler.log"

    @property
    def kind_file(self) -> Path:
        """What its machines are."""
        return self.path / "machines.kind"

    def machines(self, node: str) -> Path:
        """Where the machines of a node are."""
        return self.path / "machines" / node

    def kind(self) -> str | None:
        """What the machines here are; None: there are none yet."""
        kept = self.read(self.kind_file)
        if kept is None and (self.path / "machines").is_dir():  # of a release that knew no other
            return "simulated" if any((self.path / "machines").iterdir()) else None
        return kept

    def check_kind(self, kind: str) -> None:
        """Invalid: the machines here are of another kind."""
        there = self.kind()
        if there is not None and there != kind:
            raise Invalid(
                f"data folder {self.path}: its machines are {there}, not {kind}; give --machines {there}, or --data"
                " another folder"
            )

    def keep_kind(self, kind: str) -> None:
        """From now on the machines here are of this kind. Invalid: there are others."""
        self.check_kind(kind)
        self.write(self.kind_file, kind)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Made if need be, and this process's own meanwhile. Conflict: another `up` runs here. Invalid: no such place.

        Whatever this process creates from now on is for its owner only.
        """
        os.umask(OWNER_ONLY)
        try:
            if not self.path.exists() or not any(self.path.iterdir()):
                self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
                self.path.chmod(0o700)
            self.log_file.parent.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(self.path / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Invalid(
                f"data folder {self.path}: cannot be written: {error.strerror}; give --data a folder of your own"
            ) from None
        try:
            self._lock(descriptor)
            yield
        finally:
            os.close(descriptor)

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            who = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
            raise Conflict(
                f"data folder {self.path}: another hostler up{f' (process {who})' if who else ''} runs there;"
                " stop that one, or give --data another folder"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)

    def holder(self) -> int | None:
        """The process that holds the folder; None if none does."""
        try:
            with (self.path / "up.lock").open(encoding="utf-8") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except OSError:
                    return int(lock.read().strip() or 0)
        except (OSError, ValueError):
            pass
        return None

    def write(self, file: Path, text: str) -> None:
        """A line into a file of the folder that only the owner can read; whoever reads sees the old one or the new."""
        fresh = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as out:
                out.write(text + "\n")
                out.flush()
                os.fsync(out.fileno())
            fresh.replace(file)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise

    def read(self, file: Path) -> str | None:
        """The line in a file of the folder; None if there is none."""
        with suppress(OSError, UnicodeDecodeError):
            return file.read_text(encoding="utf-8").strip() or None
        return None

    @contextmanager
    def announced(self, url: str) -> Iterator[None]:
        """Meanwhile commands on this machine find the server."""
        self.write(self.server_file, url)
        try:
            yield
        finally:
            if self.read(self.server_file) == url:
                self.server_file.unlink(missing_ok=True)
