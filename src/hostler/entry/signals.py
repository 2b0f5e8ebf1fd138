"""Being asked to end: the first SIGTERM or SIGINT asks, the second one does not ask."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

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
