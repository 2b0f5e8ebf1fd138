"""Full collections of garbage, put off.

One walks all that there is and keeps the interpreter meanwhile: half a second with a tree of a million values. While
such a tree is built they come again and again, and find nothing.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

NEVER = 2**31 - 1
"""The most that the interpreter takes."""

_lock = threading.Lock()
_usual: list[tuple[int, int, int]] = []
"""One for each who puts them off: what it was before the first of them."""


@contextlib.contextmanager
def put_off() -> Iterator[None]:
    """No full collection begins in here, in any thread; young garbage is collected as ever."""
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
