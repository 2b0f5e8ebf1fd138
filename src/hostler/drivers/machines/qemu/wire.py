"""How the sockets of a machine's process are reached."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from typing import TYPE_CHECKING

from hostler.drivers.machines.qemu import process
from hostler.errors import Unavailable

if TYPE_CHECKING:
    from hostler.drivers.machines.qemu.folder import MachineFolder

_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.05


async def reach(folder: MachineFolder, name: str, *, within: float) -> socket.socket:
    """Connected to the socket `name` in the folder, as soon as somebody listens. Unavailable: nobody does, or died."""
    pause = _FIRST_PAUSE
    why = "it is not there"
    try:
        async with asyncio.timeout(within):
            while True:
                try:
                    return _connected(folder, name)
                except (FileNotFoundError, ConnectionRefusedError, BlockingIOError) as error:
                    why = error.strerror or why
                if not process.alive(folder):
                    raise Unavailable(
                        f"machine {folder.name}: its process has ended: {folder.said() or 'it left no word'}"
                    )
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
    except TimeoutError:
        raise Unavailable(f"machine {folder.name}: {name}: {why}, for {within:g} s; its process hangs") from None
    except OSError as error:
        raise Unavailable(f"machine {folder.name}: {name}: {error.strerror or error}") from None


def _connected(folder: MachineFolder, name: str) -> socket.socket:
    # Through a descriptor of the socket itself: who owns the folder could put a link to another one there meanwhile.
    place = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder.descriptor)
    try:
        if not stat.S_ISSOCK(os.fstat(place).st_mode):
            raise ConnectionRefusedError(0, "it is not a socket")
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            connection.connect(f"/proc/self/fd/{place}")
        except BaseException:
            connection.close()
            raise
        return connection
    finally:
        os.close(place)
