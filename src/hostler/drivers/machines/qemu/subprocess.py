"""Ends programs that were started with asyncio, explicitly or together with this process."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from hostler.drivers.machines.qemu.shielded import whole

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence


def ending_with_us(argv: Sequence[str], by: signal.Signals = signal.SIGKILL) -> list[str]:
    """Return the command that runs `argv` and gets that signal when this process ends. Put changes of user before it.

    The new process itself requests the signal. If this process has ended by then, it is no longer the parent and
    nothing is run.
    """
    still_ours = '[ "$PPID" = "$0" ] || exit 1; exec "$@"'
    return [
        "setpriv",
        f"--pdeathsig={by.name.removeprefix('SIG')}",
        "--",
        "sh",
        "-c",
        still_ours,
        f"{os.getpid()}",
        *argv,
    ]


async def end(process: asyncio.subprocess.Process, by: signal.Signals = signal.SIGKILL) -> None:
    """Send the signal and wait for the end, even if the caller is cancelled. Repeatable.

    Not by `process.kill()`: before Python 3.13 it first polls whether the process has ended, and that poll takes the
    exit status from the event loop, which then warns of an unknown child and makes up a status (CPython 87744).
    """
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, by)
        await whole(process.wait())
