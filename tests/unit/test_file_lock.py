"""A lock on a file: one holder at a time, and free as soon as it is released."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from hostler.kit.file_lock import FileLock

if TYPE_CHECKING:
    from pathlib import Path


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    first = FileLock.acquire(tmp_path / "lock")
    assert first is not None
    assert FileLock.acquire(tmp_path / "lock") is None
    first.release()
    first.release()  # a second time changes nothing
    second = FileLock.acquire(tmp_path / "lock")
    assert second is not None
    second.release()


def test_it_is_free_though_a_child_that_was_forked_meanwhile_has_a_copy(tmp_path: Path) -> None:
    lock = FileLock.acquire(tmp_path / "lock")
    assert lock is not None
    child = os.fork()
    if not child:
        signal.pause()
    try:
        lock.release()
        again = FileLock.acquire(tmp_path / "lock")
        assert again is not None
        again.release()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
