"""Being asked to end: the first SIGTERM or SIGINT asks, the second one does not ask."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def asked_to_end() -> Iterator[asyncio.Event]:
    """Set by the first signal. The second one ends the process at once: everything here survives that."""
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()

    def received(number: int) -> None:
        if asked.is_set():
            os._exit(128 + number)
        asked.set()

    for number in SIGNALS:
        loop.add_signal_handler(number, received, number)
    try:
        yield asked
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


async def run_unless_asked(
    name: str, asked: asyncio.Event, started: asyncio.Event, work: Coroutine[Any, Any, int]
) -> int:
    """The exit code of `work`, which heeds `asked` itself once it has `started`. Asked before, it is cancelled: 0.

    So who is asked to end while a store does not answer does not wait for that first.
    """
    working = asyncio.create_task(work, name=name)
    waiting = asyncio.create_task(asked.wait(), name=f"{name}: asked to end")
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not working.done() and not started.is_set():
            working.cancel()
            await asyncio.wait((working,))
        return 0 if working.done() and working.cancelled() else await working
    finally:
        for task in (working, waiting):
            task.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)
