"""The end of a program that we started by asyncio."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from hostler.drivers.machines.qemu.whole import whole

if TYPE_CHECKING:
    import asyncio


async def end(process: asyncio.subprocess.Process, by: signal.Signals = signal.SIGKILL) -> None:
    """Have it ended, and wait for that, however often who waits is cancelled. Repeatable.

    Not by `process.kill()`: before Python 3.13 that one looks first whether the process has ended, and whoever looks
    takes its status from the event loop, which then warns of an unknown child and makes up a status (CPython 87744).
    """
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, by)
        await whole(process.wait())
