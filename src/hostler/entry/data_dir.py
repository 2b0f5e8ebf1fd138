"""The data folder: the files that one `hostler up` keeps on disk.

    hostler.db           the embedded store
    machines/NODE/       the machines of a node
    machines.kind        the driver of these machines
    images/              images of machines, shared by all nodes of the folder
    bridge6              the IPv6 prefix of Hostler's own bridge
    log/hostler.log      the log, limited in size by rotation
    admin.token          the token of the first administrator
    server               the address of the API, while it is served
    up.lock              locked by the `up` that runs here
    redis                the URL of the Redis that lab requests come from, while one is used
    replica              the holder id of the last candidacy for leadership
    simulation           marks the folder of a `hostler sim serve`

Only the owner can read these files.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from hostler.errors import Conflict, Invalid
from hostler.settings.option import DEFAULT_MACHINES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OWNER_ONLY = 0o077
"""Permission bits that group and others never get."""


class DataFolder:
    """The folder at `path`, which need not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def token_file(self) -> Path:
        return self.path / "admin.token"

    @property
    def server_file(self) -> Path:
        """Return the file with the address of the API; it exists while the API is served."""
        return self.path / "server"

    @property
    def redis_file(self) -> Path:
        """Return the file with the Redis URL of the control plane that runs here, or ran here last."""
        return self.path / "redis"

    def keep_redis(self, url: str | None) -> None:
        """Record the Redis URL that lab requests come from; None: there is none."""
        if url is None:
            self.redis_file.unlink(missing_ok=True)
        else:
            self.write(self.redis_file, url)

    @property
    def replica_file(self) -> Path:
        """Return the file with the holder id of the last `up` that ran here."""
        return self.path / "replica"

    @property
    def simulation_file(self) -> Path:
        """Return the file that marks a folder of `hostler sim serve`."""
        return self.path / "simulation"

    @property
    def log_file(self) -> Path:
        return self.path / "log" / "hostler.log"

    @property
    def kind_file(self) -> Path:
        """Return the file with the driver of the machines in this folder."""
        return self.path / "machines.kind"

    def machines(self, node: str) -> Path:
        """Return the folder of a node's machines."""
        return self.path / "machines" / node

    def kind(self) -> str | None:
        """Return the driver of the machines in this folder; None: there are none yet."""
        kept = self.read(self.kind_file)
        # older releases had simulated machines only and wrote no kind file
        if kept is None and (self.path / "machines").is_dir():
            return DEFAULT_MACHINES if any((self.path / "machines").iterdir()) else None
        return kept

    def check_kind(self, kind: str) -> None:
        """Check the driver of the machines in this folder. Invalid: it is another one."""
        there = self.kind()
        if there is not None and there != kind:
            raise Invalid(
                f"data folder {self.path}: its machines are {there}, not {kind}; give --machines {there}, or --data"
                " another folder"
            )

    def keep_kind(self, kind: str) -> None:
        """Record the driver of the machines in this folder. Invalid: it is another one."""
        self.check_kind(kind)
        self.write(self.kind_file, kind)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Create the folder if necessary, and lock it for this process.

        Files that this process creates from now on are readable by their owner only. Conflict: another `up` runs here.
        Invalid: the folder cannot be created or written.
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
                f"data folder {self.path}: cannot be written: {error.strerror}; give --data a writable folder"
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
        """Return the id of the process that holds the lock; None if there is none."""
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
        """Replace a file of the folder atomically with one line that only the owner can read."""
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
        """Return the line in a file of the folder; None if the file is missing or empty."""
        with suppress(OSError, UnicodeDecodeError):
            return file.read_text(encoding="utf-8").strip() or None
        return None

    @contextmanager
    def announced(self, url: str) -> Iterator[None]:
        """Publish the server's URL to commands on this host while the context is open."""
        self.write(self.server_file, url)
        try:
            yield
        finally:
            if self.read(self.server_file) == url:
                self.server_file.unlink(missing_ok=True)
