"""The end of a program that we started."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from qemu_scene import eventually

from hostler.drivers.machines.qemu.child import end


async def test_it_is_killed_and_waited_for() -> None:
    process = await asyncio.create_subprocess_exec("sleep", "600")
    await end(process)
    assert process.returncode == -signal.SIGKILL
    await end(process)


async def test_it_may_be_asked_first() -> None:
    process = await asyncio.create_subprocess_exec("sleep", "600")
    await end(process, signal.SIGTERM)
    assert process.returncode == -signal.SIGTERM


async def test_one_that_ends_at_that_very_moment_keeps_its_status(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wait = os.waitpid

    def late(pid: int, options: int) -> Any:
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.1)  # as on a machine that has a lot to do
        return wait(pid, options)

    monkeypatch.setattr(os, "waitpid", late)
    with caplog.at_level(logging.WARNING):
        process = await asyncio.create_subprocess_exec("sh", "-c", "exit 7")
        await eventually(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
        await end(process)
    assert process.returncode == 7
    assert caplog.text == ""


async def test_who_is_cancelled_leaves_no_process() -> None:
    process = await asyncio.create_subprocess_exec("sleep", "600")
    ending = asyncio.ensure_future(end(process))
    await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert process.returncode == -signal.SIGKILL
