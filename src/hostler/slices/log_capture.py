"""The output of a slice, written to a log of limited size.

The standard output of the process is a pipe, and a thread of the same process reads it. So the writer itself limits
the log, no agent is needed, and the output of native code is included. At the end the agent, if there is one, reads
what is left in the pipe.
"""

from __future__ import annotations

import errno
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from hostler.ports.worker_protocol import MAX_LOG

if TYPE_CHECKING:
    from collections.abc import Sequence

CHUNK = 64 * 1024


def keep_log(pipe: int, logs: Sequence[int]) -> None:
    """Start to copy the pipe to the log, until the process ends."""
    for descriptor in (pipe, *logs):
        os.set_inheritable(descriptor, False)
    threading.Thread(target=Log(pipe, *logs).keep, name="log", daemon=True).start()


class Log:
    """Two files: the log, and its content before it last reached `limit` bytes."""

    def __init__(self, pipe: int, log: int, older: int, *, limit: int = MAX_LOG) -> None:
        self._pipe, self._log, self._older, self._limit = pipe, log, older, limit
        self._size = os.lseek(log, 0, os.SEEK_END)
        self._can_move = hasattr(os, "splice")

    def keep(self) -> None:
        """Copy until the pipe is closed."""
        while self.take():
            pass

    def take(self) -> bool:
        """Wait for output, and write it. False: the pipe is closed."""
        if self._size >= self._limit:
            self._turn()
        try:
            moved = self._move()
        except OSError:  # the disk is full: drop the older log to make room; if that fails, drop the output
            self._turn(keep=False)
            try:
                moved = self._move()
            except OSError:
                return bool(os.read(self._pipe, CHUNK))
        self._size += moved
        return moved > 0

    def _move(self) -> int:
        """Move some bytes from the pipe to the log. Splice loses no bytes if the process ends."""
        most = min(CHUNK, self._limit - self._size)
        if self._can_move:
            try:
                return os.splice(self._pipe, self._log, most)
            except OSError as error:
                if error.errno != errno.EINVAL:  # this file system does not support splice
                    raise
                self._can_move = False
        return os.write(self._log, text) if (text := os.read(self._pipe, most)) else 0

    def _turn(self, *, keep: bool = True) -> None:
        """Start the log again, and keep its content as the older part, which is emptied first to make room."""
        with suppress(OSError):
            os.ftruncate(self._older, 0)
            at = max(0, self._size - self._limit) if keep else self._size
            to = 0
            while text := os.pread(self._log, CHUNK, at):
                to += os.pwrite(self._older, text, to)
                at += len(text)
        with suppress(OSError):
            os.ftruncate(self._log, 0)
            os.lseek(self._log, 0, os.SEEK_SET)
        self._size = 0
