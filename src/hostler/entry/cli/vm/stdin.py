"""What is typed, or comes from a pipe or a file."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import sys
import threading
from contextlib import suppress


def read_into(queue: asyncio.Queue[bytes], *, chunk: int, name: str) -> None:
    """Begin to put there what comes, up to `chunk` bytes at a time, and empty bytes where it ends.

    In a thread of its own: a terminal, a pipe and a file are all read alike, and nothing else waits for them.
    """
    loop = asyncio.get_running_loop()

    def read() -> None:
        data = b"?"
        with suppress(RuntimeError, concurrent.futures.CancelledError):  # the loop has ended meanwhile
            while data:
                try:
                    data = os.read(sys.stdin.fileno(), chunk)
                except (OSError, ValueError):
                    data = b""
                asyncio.run_coroutine_threadsafe(queue.put(data), loop).result()

    threading.Thread(target=read, name=name, daemon=True).start()
