"""New disks over a base.

Disks of one size are equal, so `qemu-img` makes the first, and the others are copies of it.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from typing import TYPE_CHECKING

from hostler.drivers.machines.qemu.disk import DISK
from hostler.errors import Unavailable
from hostler.kit.tasks import run_to_end

if TYPE_CHECKING:
    from pathlib import Path

    from hostler.drivers.machines.qemu.disk import Disk

KEPT = 8
KEPT_BYTES = 2**19
"""Maximum size of a kept disk; those of up to some TiB of virtual size are smaller."""
_kept: OrderedDict[tuple[Path, str, int], bytes] = OrderedDict()
"""New disks by folder, base format and size. Their content depends on nothing else: the base is always named `base`."""


async def lay(disk: Disk, folder: Path, base_format: str, size_bytes: int) -> None:
    """Create an empty disk in that folder, durably, replacing an existing one."""
    shape = folder.parent, base_format, size_bytes
    content = _kept.get(shape)
    if content is None:
        await disk.create(size_bytes)
        content = await asyncio.to_thread(_read, folder / DISK)
        if len(content) <= KEPT_BYTES:
            _kept[shape] = content
            if len(_kept) > KEPT:
                _kept.popitem(last=False)
    else:
        _kept.move_to_end(shape)
        disk.remove()
        await run_to_end(asyncio.to_thread(_write, folder / DISK, content))


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(KEPT_BYTES + 1)


def _write(path: Path, content: bytes) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
    except OSError as error:
        raise Unavailable(f"{path}: cannot create the disk: {error.strerror}; fix the cause and try again") from None
