"""Saved states: the memory of a guest that has booted and does not know yet who it is.

    {image}/warm/{cpus}x{memory}/{key}.state    read only, whole or not there
    {image}/warm/.making-*                      a template at work, with the lock of whoever makes it

A machine of that image and shape may go on from there at any of its starts: the template has seen no disk, and what it
is told after its `go` is the machine's own. The key is made of everything that memory depends on, above all the
template's command line as `command` makes it: where that changes, older states are not found any more.

A machine's process reads the file through a descriptor that cannot write, into memory of its own. What a guest does to
its process can therefore never reach another machine.
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
"""Of one image. Those that were not used for longest go first."""
NETDEV = "hubport,id=n0,hubid=0"
"""A template is on no network; what is loaded from it may be on any."""
_MAC = "52:54:00:00:00:01"


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What a saved state fits."""

    image: Image
    cpus: int
    memory_mib: int
    accelerator: str
    version: str
    """Of QEMU."""
    processor: str
    """What the guest sees of it."""

    @property
    def name(self) -> str:
        return f"{self.cpus}x{self.memory_mib}"

    @property
    def key(self) -> str:
        """Of everything that the memory depends on."""
        parts = [self.version, self.processor, self.image.digest, *template_command(self)]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]

    def path(self, image: Path) -> Path:
        """In the folder of the image."""
        return image / FOLDER / self.name / f"{self.key}{SUFFIX}"


def template_command(shape: Shape) -> list[str]:
    """Of the guest that is saved: as of a machine, but without an identity and on no network."""
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


def opened(image: Path, shape: Shape) -> int | None:
    """A descriptor of the saved state, to be inherited and then closed; None: there is none, or none to be read."""
    path = shape.path(image)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # it was used
    return descriptor


def keep(image: Path, shape: Shape, made: Path) -> None:
    """Let the file be the saved state of that shape, also after a loss of power. What is too much goes."""
    path = shape.path(image)
    for folder in (path.parent.parent, path.parent):
        folder.mkdir(mode=0o700, exist_ok=True)
    made.chmod(0o400)
    sync_file(made)
    made.replace(path)
    sync_folder(path.parent)
    _prune(image, path)


def _prune(image: Path, latest: Path) -> None:
    """Within bounds, whatever happens to be there; the latest stays."""
    found = sorted(_states(image), key=lambda path: path.stat().st_mtime, reverse=True)
    found = [latest, *(path for path in found if path != latest)]
    left = BYTES_AT_MOST
    for place, path in enumerate(found):
        left -= path.stat().st_blocks * 512
        if path != latest and (place >= STATES_AT_MOST or left < 0):
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # another state of that shape is there
                path.parent.rmdir()


def _states(image: Path) -> Iterator[Path]:
    return (image / FOLDER).glob(f"*/*{SUFFIX}")


@contextlib.contextmanager
def making(image: Path) -> Iterator[tuple[Path, int]]:
    """A folder to make a state in, and its lock, which whatever works there inherits. Removed at the end."""
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
    """Remove what makers that were killed left, once nothing works there any more."""
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
