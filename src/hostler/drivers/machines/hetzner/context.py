"""What the verbs of one node share: the API client, the poller, the options, and its local state in files.

    lock            held with flock by the process that has the folder open
    specs/VM.DIGEST the spec that the label of a server names; never changed
    ready/VM        the server that was available to its user, and since when, while it keeps running

A label names a spec by its digest, so a file with other content is never used. Writing the file and changing the label
need not be atomic. If the file is lost, size and image are known from other labels.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from hostler.drivers.machines.hetzner.api import Api
from hostler.drivers.machines.hetzner.labels import Card, card_of, vm_hash
from hostler.drivers.machines.hetzner.poller import Goings, Poller
from hostler.errors import Damaged, Invalid, Unavailable, Uncertain
from hostler.kit.file_lock import FileLock
from hostler.model.vm import VmSpec

if TYPE_CHECKING:
    from hostler.drivers.machines.hetzner.api_types import Server
    from hostler.drivers.machines.hetzner.descriptor import HetznerOptions
    from hostler.kit.clock import Clock

_log = logging.getLogger("hostler.machines")


def digest_of(spec: VmSpec) -> str:
    return hashlib.sha256(spec.encode()).hexdigest()[:32]


class LocalState:
    """The folder of local state, created if it does not exist."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._lock: FileLock | None = None
        self._read: dict[str, VmSpec] = {}

    def open(self) -> None:
        """Open and lock the folder. Unavailable: another process has it open, or it cannot be used."""
        if self._lock is not None:
            raise self._taken_error()
        try:
            for name in ("specs", "ready"):
                (self.folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = FileLock.acquire(self.folder / "lock")
        except OSError as error:
            raise self._unusable(error) from None
        if self._lock is None:
            raise self._taken_error()

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def keep(self, vm: str, spec: VmSpec) -> str:
        """Write a spec to disk; return its digest."""
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
        """Return a spec; None: its file is lost."""
        path = self._path(vm, digest)
        if path.name not in self._read:
            try:
                self._read[path.name] = VmSpec.decode(path.read_bytes())
            except (OSError, Invalid):
                return None
        return self._read[path.name]

    def spec_of(self, card: Card) -> VmSpec:
        """Return the spec of a machine; if its file is lost, the part that the labels contain."""
        cpus, memory_mib, disk_gib = card.shape
        return self.spec(card.key, card.spec) or VmSpec(
            cpus=cpus, memory_mib=memory_mib, disk_gib=disk_gib, image=card.image, user=card.user
        )

    def forget(self, vm: str, *, but: str = "") -> None:
        """Delete all specs of a machine that does not run, except the spec with digest `but`."""
        self.not_ready(vm)
        for path in (self.folder / "specs").glob(f"{vm_hash(vm)}.*"):
            if path.name != self._path(vm, but).name:
                self._read.pop(path.name, None)
                with contextlib.suppress(OSError):
                    path.unlink()

    # Readiness of running servers. If a file is lost, the driver probes the server again.

    def ready(self, vm: str, server: int, since: float) -> None:
        path = self.folder / "ready" / vm_hash(vm)
        draft = path.with_name(f".{path.name}")
        try:
            draft.write_text(f"{server} {since!r}")
            draft.replace(path)
        except OSError as error:
            _log.warning("%s: cannot write; the server is probed again after a restart: %s", path, error.strerror)

    def not_ready(self, vm: str) -> None:
        with contextlib.suppress(OSError):
            (self.folder / "ready" / vm_hash(vm)).unlink(missing_ok=True)

    def ready_since(self, vm: str, server: int) -> float | None:
        """Return since when that server was available; None: not known."""
        try:
            number, since = (self.folder / "ready" / vm_hash(vm)).read_text().split()
            return float(since) if int(number) == server else None
        except (OSError, ValueError):
            return None

    def _path(self, vm: str, digest: str) -> Path:
        return self.folder / "specs" / f"{vm_hash(vm)}.{digest if digest.isalnum() else 'none'}"

    def _taken_error(self) -> Unavailable:
        return Unavailable(
            f"Hetzner machines of {self.folder}: another process has them open; stop that agent first, or give this one"
            " another folder"
        )

    def _unusable(self, error: OSError) -> Unavailable:
        return Unavailable(f"{self.folder}: cannot be used: {error.strerror}; fix the cause and try again")


class HetznerContext:
    """Shared objects of one driver."""

    def __init__(self, folder: str | Path, options: HetznerOptions, *, clock: Clock) -> None:
        self.options, self.clock = options, clock
        self.kept = LocalState(folder)
        self.api = Api(options, clock=clock)
        self.looks = Poller(self.api)
        self.goings = Goings(self.api, self.looks, options.pace, clock=clock)

    def open(self) -> None:
        self.kept.open()
        self.api.open()

    async def aclose(self) -> None:
        await self.goings.aclose()
        await self.looks.aclose()
        await self.api.aclose()
        self.kept.close()

    def card(self, server: Server) -> Card | None:
        """Return the record in a server's labels. None: not Hostler's. Damaged: another client changed the labels."""
        try:
            return card_of(server.labels)
        except Damaged as error:
            raise Damaged(
                f"server {server.name} (hcloud-{server.id}): {error}; correct its labels, or delete it in Hetzner's"
                " console"
            ) from None

    async def relabel(self, server: Server, card: Card) -> Server:
        return await self.api.relabel(server, card.labels())

    async def destroy(self, server: Server) -> None:
        """Delete a server and wait until it is gone. Uncertain: it is not gone yet."""
        action = await self.api.delete(server)
        if action is None:
            return
        ended = await self.goings.wait_until_ended(action, f"server {server.name}")
        if ended.failed:
            raise Uncertain(f"server {server.name}: not deleted: {ended.message}; inspect it and try again")
        try:
            await self.goings.became(
                server.name, lambda seen: seen is None or seen.id != server.id, within=self.options.pace.patience
            )
        except TimeoutError:
            raise Uncertain(f"server {server.name}: deleted, but still listed; inspect it") from None
