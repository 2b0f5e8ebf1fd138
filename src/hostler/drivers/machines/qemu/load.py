"""What is in a node's folder, when its driver opens."""

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
    from hostler.drivers.machines.qemu.folder import PlaceFolder
    from hostler.drivers.machines.qemu.state import MachineRecord

NUMBER = "number"
"""A file with the machine's number, beside its record: one that cannot be read still has its tap, rules and group."""
_log = logging.getLogger("hostler.qemu")


class Content(msgspec.Struct):
    """Of a node's folder."""

    machines: list[tuple[MachineFolder, MachineRecord]] = msgspec.field(default_factory=list)
    broken: dict[str, Damaged] = msgspec.field(default_factory=dict)
    """What cannot be read, by the name of its folder."""
    numbers: set[int] = msgspec.field(default_factory=set)
    """That are taken, also by what cannot be read."""
    is_known: bool = True
    """Whether these are all."""


def read(place: PlaceFolder) -> Content:
    """What cannot be read stays as it is, and hides nothing else."""
    content = Content()
    for folder in place.machines():
        try:
            record = state.read(folder.path)
            if folder_name(record.vm) != folder.path.name:
                raise Damaged(f"{folder.path}: it holds machine {record.vm!r}, whose folder has another name")
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
    """0: it never was a machine, for what each has from the first is not there. None: it cannot be told."""
    try:
        if ALIVE not in os.listdir(folder.path):
            return 0
        return int(folder.read_ours(NUMBER, 32))
    except (OSError, ValueError, Unavailable):
        return None
