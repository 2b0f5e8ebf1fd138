"""Saved states: the memory of a guest that has booted and has no identity yet.

    {image}/warm/{cpus}x{memory}/{key}.state    read-only, complete or missing
    {image}/warm/.making-*                      a template being made, with the lock of its maker

A machine of that image and size can resume from it at any of its starts: the template has read no disk, and everything
it receives after `go` belongs to the machine. The key is a digest of everything that the memory depends on, above all
the template's command line as built by `command`. When that changes, older states are no longer found.

A machine's process reads the file through a read-only descriptor into its own memory. So what a guest does to its
process can never reach another machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from typing import TYPE_CHECKING

import msgspec

from hostler.drivers.machines.qemu.command import Boot, Wiring, command
from hostler.drivers.machines.qemu.state import Life, MachineRecord
from hostler.kit.fsync import sync_file, sync_folder
from hostler.model.vm import VmSpec
from hostler.ports.machines import Label

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hostler.model.image import Image

ARGUMENT = "hostler.template"
FOLDER, SUFFIX, MAKING = "warm", ".state", ".making-"
STATES_AT_MOST = 8
BYTES_AT_MOST = 8 * 2**30
"""Limits per image. The least recently used states are deleted first."""
NETDEV = "hubport,id=n0,hubid=0"
"""A template has no network; a machine that resumes from it may have any."""
_MAC = "52:54:00:00:00:01"


class SavedShape(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a saved state depends on."""

    image: Image
    cpus: int
    memory_mib: int
    accelerator: str
    version: str
    """Of QEMU."""
    processor: str
    """The processor as the guest sees it."""

    @property
    def name(self) -> str:
        return f"{self.cpus}x{self.memory_mib}"

    @property
    def key(self) -> str:
        """Digest of everything that the memory depends on."""
        parts = [self.version, self.processor, self.image.digest, *template_command(self)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def path(self, image: Path) -> Path:
        """Return the path in the folder of the image."""
        return image / FOLDER / self.name / f"{self.key}{SUFFIX}"


def template_command(shape: SavedShape) -> list[str]:
    """Return the command of the guest to save: that of a machine, but without identity and network."""
    record = MachineRecord(
        label=Label(org="", project="", vm="template"),
        spec=VmSpec(cpus=shape.cpus, memory_mib=shape.memory_mib),
        number=1,
        life=Life.WHOLE,
        image=shape.image,
        mac=_MAC,
        host_key="",
    )
    return command(record, Wiring(accelerator=shape.accelerator, netdev=NETDEV), Boot(append=ARGUMENT))


def open_state(image: Path, shape: SavedShape) -> int | None:
    """Open the saved state for QEMU to inherit; the caller closes it. None: it is missing or unreadable."""
    path = shape.path(image)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # marks it as used
    return descriptor


def keep(image: Path, shape: SavedShape, made: Path) -> None:
    """Store the file as the saved state, durably. States beyond the limits are deleted."""
    path = shape.path(image)
    for folder in (path.parent.parent, path.parent):
        folder.mkdir(mode=0o700, exist_ok=True)
    made.chmod(0o400)
    sync_file(made)
    made.replace(path)
    sync_folder(path.parent)
    _prune(image, path)


def _prune(image: Path, latest: Path) -> None:
    """Delete states beyond the limits; the latest stays."""
    found = sorted(_states(image), key=lambda path: path.stat().st_mtime, reverse=True)
    found = [latest, *(path for path in found if path != latest)]
    left = BYTES_AT_MOST
    for place, path in enumerate(found):
        left -= path.stat().st_blocks * 512
        if path != latest and (place >= STATES_AT_MOST or left < 0):
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # another state of that size exists
                path.parent.rmdir()


def _states(image: Path) -> Iterator[Path]:
    return (image / FOLDER).glob(f"*/*{SUFFIX}")


@contextlib.contextmanager
def making(image: Path) -> Iterator[tuple[Path, int]]:
    """Yield a folder to make a state in and its lock, for processes to inherit. The folder is removed at the end."""
    place = image / FOLDER
    place.mkdir(mode=0o700, exist_ok=True)
    _sweep(place)
    folder = place / f"{MAKING}{os.urandom(6).hex()}"
    lock = os.open(folder.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder.mkdir(mode=0o700)
        yield folder, lock
    finally:
        _discard(folder)
        fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)


def _sweep(place: Path) -> None:
    """Remove folders of killed makers once no process works there."""
    for path in place.glob(f"{MAKING}*.lock"):
        with contextlib.suppress(OSError):
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _discard(path.with_suffix(""))
            finally:
                os.close(lock)


def _discard(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.exists():
        folder.with_suffix(".lock").unlink(missing_ok=True)
