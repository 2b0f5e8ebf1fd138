"""What a slice prints, written to its log, which never becomes long.

Its standard output is a pipe, and a thread of the same process empties it: so the log is bounded by whoever writes it,
needs no agent, and native code's words are in it too. What is left in the pipe at the end the agent takes, if there is
one.
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
    """From now on, until the process ends."""
    for descriptor in (pipe, *logs):
        os.set_inheritable(descriptor, False)
    threading.Thread(target=Log(pipe, *logs).keep, name="log", daemon=True).start()


class Log:
    """Two files: the log, and what was in it before it became `limit` bytes long."""

    def __init__(self, pipe: int, log: int, older: int, *, limit: int = MAX_LOG) -> None:
        self._pipe, self._log, self._older, self._limit = pipe, log, older, limit
        self._size = os.lseek(log, 0, os.SEEK_END)
        self._can_move = True

    def keep(self) -> None:
        """Until nobody can print any more."""
        while self.take():
            pass

    def take(self) -> bool:
        """Wait for something to be printed, and write it. False: nobody can print any more."""
        if self._size >= self._limit:
            self._turn()
        try:
            moved = self._move()
        except OSError:  # no room: what is there already has to make some, or nothing is kept
            self._turn(keep=False)
            try:
                moved = self._move()
            except OSError:
                return bool(os.read(self._pipe, CHUNK))
        self._size += moved
        return moved > 0

    def _move(self) -> int:
        """Some bytes from the pipe to the log. What is not there is still here, whenever the process ends."""
        most = min(CHUNK, self._limit - self._size)
        if self._can_move:
            try:
                return os.splice(self._pipe, self._log, most)
            except OSError as error:
                if error.errno != errno.EINVAL:  # this file system cannot
                    raise
                self._can_move = False
        return os.write(self._log, text) if (text := os.read(self._pipe, most)) else 0

    def _turn(self, *, keep: bool = True) -> None:
        """Begin the log anew. The older part goes first, so that there is room for the other."""
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
