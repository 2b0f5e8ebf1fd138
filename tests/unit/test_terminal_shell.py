"""What a shell in a lab's machine is told of the window."""

from __future__ import annotations

import asyncio
from typing import Any

from hostler.entry.terminal.machine import RESIZE_EVERY, Shell
from hostler.testing import run_virtual


class Process:
    def __init__(self) -> None:
        self.sizes: list[tuple[int, int]] = []

    def change_terminal_size(self, cols: int, rows: int) -> None:
        self.sizes.append((cols, rows))


def test_of_many_sizes_at_once_the_machine_hears_the_first_and_the_last() -> None:
    async def main() -> None:
        process: Any = Process()
        shell = Shell(process)
        for cols in range(1, 10_001):
            shell.resize(cols, 24)
        await asyncio.sleep(RESIZE_EVERY * 1.5)
        assert process.sizes == [(1, 24), (10_000, 24)]
        for cols in range(100):
            shell.resize(cols, 30)
            await asyncio.sleep(RESIZE_EVERY / 10)
        await asyncio.sleep(RESIZE_EVERY * 3)
        assert process.sizes[-1] == (99, 30)
        assert len(process.sizes) <= 2 + 12
        shell.resize(1, 1)
        shell.resize(2, 2)
        shell.close()
        await asyncio.sleep(RESIZE_EVERY * 2)
        assert process.sizes[-1] == (1, 1)

    run_virtual(main)
