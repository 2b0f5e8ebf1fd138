"""Connects to the sockets of a machine's process, and limits the rate of reading."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from typing import TYPE_CHECKING

from hostler.drivers.machines.qemu import process
from hostler.drivers.machines.qemu.folder import ALIVE
from hostler.errors import Unavailable

if TYPE_CHECKING:
    from hostler.drivers.machines.qemu.folder import MachineFolder

_FIRST_PAUSE, _LONGEST_PAUSE, _GROWTH = 0.002, 0.05, 1.15
"""Pauses between two attempts. They grow slowly: a starting process listens after some tens of milliseconds."""


async def reach(folder: MachineFolder, name: str, *, within: float) -> socket.socket:
    """Connect to the socket `name` in the folder as soon as a process listens.

    Unavailable: none does, or it has ended.
    """
    pause = _FIRST_PAUSE
    why = "it does not exist"
    try:
        async with asyncio.timeout(within):
            while True:
                try:
                    return _connected(folder, name)
                except (FileNotFoundError, ConnectionRefusedError, BlockingIOError) as error:
                    why = error.strerror or why
                if _over(folder):
                    raise Unavailable(f"machine {folder.name}: its process has ended: {folder.said() or 'no message'}")
                await asyncio.sleep(pause)
                pause = min(_GROWTH * pause, _LONGEST_PAUSE)
    except TimeoutError:
        raise Unavailable(f"machine {folder.name}: {name}: {why} for {within:g} s; its process hangs") from None
    except OSError as error:
        raise Unavailable(f"machine {folder.name}: {name}: {error.strerror or error}") from None


class Throttle:
    """Lets a transport read `rate` bytes per second on average, with bursts up to `burst`.

    `rest`: seconds after every read in which nothing is read, so that data that arrives byte by byte is read in pieces.
    """

    def __init__(self, rate: int, burst: int, *, rest: float = 0.0) -> None:
        self._rate, self._burst, self._rest = rate, burst, rest
        self._credit, self._counted_at = float(burst), 0.0
        self._resume: asyncio.TimerHandle | None = None

    def took(self, transport: asyncio.ReadTransport, size: int) -> None:
        """Account for `size` bytes that were read."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        self._credit = min(self._burst, self._credit + (now - self._counted_at) * self._rate) - size
        self._counted_at = now
        # Wait for credit for more than a few bytes: few large reads cost less than many small ones.
        wait = (self._burst / 4 - self._credit) / self._rate if self._credit < 0 else self._rest
        if wait > 0 and self._resume is None and not transport.is_closing():
            transport.pause_reading()
            self._resume = loop.call_later(wait, self._go_on, transport)

    def stop(self) -> None:
        """Stop; nothing more will be read."""
        if self._resume is not None:
            self._resume.cancel()
            self._resume = None

    def _go_on(self, transport: asyncio.ReadTransport) -> None:
        self._resume = None
        if not transport.is_closing():
            transport.resume_reading()


def _over(folder: MachineFolder) -> bool:
    """Return whether there was a process that has ended."""
    return (folder.path / ALIVE).exists() and not process.alive(folder)


def _connected(folder: MachineFolder, name: str) -> socket.socket:
    # Through a descriptor of the socket itself: the owner of the folder could replace the name by a link to another
    # one.
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
