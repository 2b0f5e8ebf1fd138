"""Standard input, read by a thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import sys
import threading
from contextlib import suppress


def read_into(queue: asyncio.Queue[bytes], *, chunk: int, name: str) -> None:
    """Start to put standard input into `queue`, up to `chunk` bytes at a time, and empty bytes at its end.

    A thread reads, because a terminal, a pipe and a file can then be read in the same way without blocking the loop.
    """
    loop = asyncio.get_running_loop()

    def read() -> None:
        data = b"?"
        with suppress(RuntimeError, concurrent.futures.CancelledError):  # the loop has ended
            while data:
                try:
                    data = os.read(sys.stdin.fileno(), chunk)
                except (OSError, ValueError):
                    data = b""
                asyncio.run_coroutine_threadsafe(queue.put(data), loop).result()

    threading.Thread(target=read, name=name, daemon=True).start()
