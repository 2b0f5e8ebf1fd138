"""The size of a window that changes while the other side of an SSH connection begins."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import sys
import termios

import pytest

from hostler.entry.cli.vm.ssh import Session


class Shell:
    """As much of a process there as is asked for."""

    def __init__(self) -> None:
        self.sizes: list[tuple[int, int]] = []

    def change_terminal_size(self, columns: int, rows: int) -> None:
        self.sizes.append((columns, rows))


@pytest.mark.parametrize(("now", "told"), [((101, 31), []), ((80, 40), [(80, 40)])])
async def test_a_size_that_changed_before_anybody_listened_is_told(
    now: tuple[int, int], told: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, its = pty.openpty()
    try:
        with os.fdopen(its) as window:
            monkeypatch.setattr(sys, "stdin", window)
            fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", now[1], now[0], 0, 0))
            shell = Shell()
            with Session(shell).resizing(os.terminal_size((101, 31))):  # type: ignore[arg-type]
                assert shell.sizes == told
    finally:
        os.close(ours)
