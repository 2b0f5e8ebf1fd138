"""Reads the folder of a node when its driver opens."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from hostler.drivers.machines.qemu import process, state
from hostler.drivers.machines.qemu.folder import ALIVE, MachineFolder, folder_name
from hostler.errors import Damaged, Unavailable

if TYPE_CHECKING:
    from hostler.drivers.machines.qemu.folder import NodeFolder
    from hostler.drivers.machines.qemu.state import MachineRecord

NUMBER = "number"
"""File with the machine's number, next to its record: it identifies tap and group if the record is unreadable."""
_log = logging.getLogger("hostler.qemu")


class Content(msgspec.Struct):
    """Content of a node's folder."""

    machines: list[tuple[MachineFolder, MachineRecord]] = msgspec.field(default_factory=list)
    broken: dict[str, Damaged] = msgspec.field(default_factory=dict)
    """Errors of records that cannot be read, by folder name."""
    numbers: set[int] = msgspec.field(default_factory=set)
    """Numbers in use, also of machines whose record cannot be read."""
    is_known: bool = True
    """Whether `numbers` is complete."""


def read(place: NodeFolder) -> Content:
    """Read all machines. A record that cannot be read stays as it is and does not hide the others."""
    content = Content()
    for folder in place.machines():
        try:
            record = state.read(folder.path)
            if folder_name(record.vm) != folder.path.name:
                raise Damaged(f"{folder.path}: it contains machine {record.vm!r}, whose folder has another name")
        except Damaged as error:
            content.broken[folder.path.name] = error
            _log.warning("%s%s", error, "; its process runs" if _lives(folder) else "")
            number = number_of(folder)
            content.is_known = content.is_known and number is not None
            content.numbers |= {number} if number else set()
        else:
            content.machines.append((folder, record))
            content.numbers.add(record.number)
    return content


def _lives(folder: MachineFolder) -> bool:
    with suppress(Unavailable):
        return process.alive(folder)
    return False


def number_of(folder: MachineFolder) -> int | None:
    """Return the machine's number. 0: the folder never was a machine, because `alive` is missing. None: not known."""
    try:
        if ALIVE not in os.listdir(folder.path):
            return 0
        return int(folder.read_ours(NUMBER, 32))
    except (OSError, ValueError, Unavailable):
        return None
