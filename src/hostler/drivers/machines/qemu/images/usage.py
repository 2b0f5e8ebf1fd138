"""Users of an image: machines with a link to its disk, or with a copy of it that their state file names."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Usage(msgspec.Struct, frozen=True):
    """Machines that use an image."""

    machines: tuple[str, ...]
    """Names of the machines that were found."""
    elsewhere: int
    """Links to its disk outside of the known folders."""

    @property
    def count(self) -> int:
        return len(self.machines) + self.elsewhere

    def __str__(self) -> str:
        shown = [*self.machines[:5], *([f"{len(self.machines) - 5} more"] if len(self.machines) > 5 else [])]
        if self.elsewhere:
            shown.append(f"{self.elsewhere} of another data folder")
        return ", ".join(shown)


class _Label(msgspec.Struct):
    vm: str = ""


class _State(msgspec.Struct):
    """The part of a machine's state file that is needed to name it."""

    label: _Label = msgspec.field(default_factory=_Label)
    name: str = ""


class Users:
    """The machines of a data folder, read once and queried for many images."""

    def __init__(self, machines: Path | None) -> None:
        self._by_inode: dict[tuple[int, int], list[str]] = {}
        self._states: list[tuple[str, bytes, tuple[int, int] | None]] = []
        for folder in _folders(machines):
            state = _read(folder / "machine.json")
            name = _name(folder, state)
            base = _inode(folder / "base")
            if base is not None:
                self._by_inode.setdefault(base, []).append(name)
            self._states.append((name, state, base))

    def of(self, image: Path) -> Usage:
        """Return the users of the image in that folder."""
        disk = (image / "disk").stat()
        key = (disk.st_dev, disk.st_ino)
        linked = self._by_inode.get(key, [])
        own = sum((status.st_dev, status.st_ino) == key for status in statuses_in(image))  # of a template's folder
        digest = image.name.encode()
        named = [name for name, state, base in self._states if base != key and digest in state]
        return Usage(tuple(sorted([*linked, *named])), max(0, disk.st_nlink - own - len(linked)))


def statuses_in(folder: Path) -> Iterator[os.stat_result]:
    """Yield the status of all files below the folder. Files may appear and vanish: warming does not hold the lock."""
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                yield os.lstat(os.path.join(place, name))


def _folders(machines: Path | None) -> Iterator[Path]:
    """`machines/{node}/vms/{machine}`."""
    if machines is not None:
        yield from sorted(path for path in machines.glob("*/vms/*") if path.is_dir())


def _name(folder: Path, state: bytes) -> str:
    try:
        read = msgspec.json.decode(state, type=_State)
    except msgspec.MsgspecError:
        return folder.name
    return read.name or read.label.vm or folder.name


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
