"""What a node keeps of its machines at Hetzner Cloud: the lock, and their specs, which are too large for labels.

    lock            flocked by the process that has the place open
    specs/VM.DIGEST the spec that the label of a server names; it never changes
    ready/VM        the server that was available to its user, and since when, as long as it runs on

A label names a spec by its digest, so a file is right or it is not used: nothing has to be written in one step with
what is changed at Hetzner Cloud. If it is lost, size and image are known from other labels.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from hostler.drivers.machines.hetzner.labels import vm_hash
from hostler.errors import Invalid, Unavailable
from hostler.model.vm import VmSpec

if TYPE_CHECKING:
    from hostler.drivers.machines.hetzner.labels import Card

_log = logging.getLogger("hostler.machines")


def digest_of(spec: VmSpec) -> str:
    return hashlib.sha256(spec.encode()).hexdigest()[:32]


class Kept:
    """A folder, which is made if it is not there."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._lock = -1
        self._read: dict[str, VmSpec] = {}

    def open(self) -> None:
        """Unavailable: another process has it open, or it cannot be used."""
        if self._lock >= 0:
            raise self._taken()
        try:
            for name in ("specs", "ready"):
                (self.folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unusable(error) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise self._taken() from None
        self._lock = lock

    def close(self) -> None:
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def keep(self, vm: str, spec: VmSpec) -> str:
        """Its digest, once it is on disk."""
        digest = digest_of(spec)
        path = self._path(vm, digest)
        if self.spec(vm, digest) == spec:
            return digest
        draft = path.with_name(f".{path.name}")
        try:
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(spec.encode())
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except OSError as error:
            raise self._unusable(error) from None
        self._read[path.name] = spec
        return digest

    def spec(self, vm: str, digest: str) -> VmSpec | None:
        """None: it is lost."""
        path = self._path(vm, digest)
        if path.name not in self._read:
            try:
                self._read[path.name] = VmSpec.decode(path.read_bytes())
            except (OSError, Invalid):
                return None
        return self._read[path.name]

    def spec_of(self, card: Card) -> VmSpec:
        """Of a machine; if the file is lost, as far as it is known."""
        cpus, memory_mib, disk_gib = card.shape
        return self.spec(card.key, card.spec) or VmSpec(
            cpus=cpus, memory_mib=memory_mib, disk_gib=disk_gib, image=card.image, user=card.user
        )

    def forget(self, vm: str, *, but: str = "") -> None:
        """All specs of a machine, but that of the digest. It does not run."""
        self.not_ready(vm)
        for path in (self.folder / "specs").glob(f"{vm_hash(vm)}.*"):
            if path.name != self._path(vm, but).name:
                self._read.pop(path.name, None)
                with contextlib.suppress(OSError):
                    path.unlink()

    # Whether it was available: lost, it is found out again

    def ready(self, vm: str, server: int, since: float) -> None:
        path = self.folder / "ready" / vm_hash(vm)
        draft = path.with_name(f".{path.name}")
        try:
            draft.write_text(f"{server} {since!r}")
            draft.replace(path)
        except OSError as error:
            _log.warning("%s: cannot be written, so after a restart it is asked anew: %s", path, error.strerror)

    def not_ready(self, vm: str) -> None:
        with contextlib.suppress(OSError):
            (self.folder / "ready" / vm_hash(vm)).unlink(missing_ok=True)

    def ready_since(self, vm: str, server: int) -> float | None:
        """None: that server was not available, as far as is known."""
        try:
            number, since = (self.folder / "ready" / vm_hash(vm)).read_text().split()
            return float(since) if int(number) == server else None
        except (OSError, ValueError):
            return None

    def _path(self, vm: str, digest: str) -> Path:
        return self.folder / "specs" / f"{vm_hash(vm)}.{digest if digest.isalnum() else 'none'}"

    def _taken(self) -> Unavailable:
        return Unavailable(
            f"Hetzner machines of {self.folder}: another process has them open; end that agent first, or give this one"
            " a folder of its own"
        )

    def _unusable(self, error: OSError) -> Unavailable:
        return Unavailable(f"{self.folder}: cannot be used: {error.strerror}; see to it and try again")
