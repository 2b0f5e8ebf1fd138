"""Suspension of full garbage collections.

A full collection walks all objects and blocks the interpreter: half a second with a tree of a million values. While
such a tree is built, full collections come again and again and find nothing.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

NEVER = 2**31 - 1
"""The largest threshold that the interpreter accepts."""

_lock = threading.Lock()
_usual: list[tuple[int, int, int]] = []
"""One item per active `put_off`: the threshold before the first of them."""


@contextlib.contextmanager
def put_off() -> Iterator[None]:
    """Prevent full collections inside this context, in any thread; young garbage is collected as usual."""
    with _lock:
        _usual.append(_usual[0] if _usual else gc.get_threshold())
        gc.set_threshold(*_usual[0][:2], NEVER)
    try:
        yield
    finally:
        with _lock:
            usual = _usual.pop()
            if not _usual:
                gc.set_threshold(*usual)
