"""The end of a program that we started."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from qemu_scene import eventually

import hostler
from hostler.kit.processes import end_process


def has_ended(pid: int) -> bool:
    """Return whether a child has ended. Since Python 3.12 the event loop reaps it, and no thread waits for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def test_it_is_killed_and_waited_for() -> None:
    process = await asyncio.create_subprocess_exec("sleep", "600")
    await end_process(process)
    assert process.returncode == -signal.SIGKILL
    await end_process(process)


async def test_it_may_be_asked_first() -> None:
    process = await asyncio.create_subprocess_exec("sleep", "600")
    await end_process(process, signal.SIGTERM)
    assert process.returncode == -signal.SIGTERM


async def test_one_that_ends_at_that_very_moment_keeps_its_status(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wait, ending = os.waitpid, threading.Event()

    def late(pid: int, options: int) -> Any:
        if threading.current_thread() is not threading.main_thread():
            ending.wait(60)  # as on a machine that has a lot to do
        return wait(pid, options)

    monkeypatch.setattr(os, "waitpid", late)
    with caplog.at_level(logging.WARNING):
        process = await asyncio.create_subprocess_exec("sh", "-c", "exit 7")
        await eventually(lambda: has_ended(process.pid))
        asyncio.get_running_loop().call_later(0.1, ending.set)
        await end_process(process)
    assert process.returncode == 7
    assert caplog.text == ""


async def test_who_is_cancelled_leaves_no_process() -> None:
    process = await asyncio.create_subprocess_exec("sleep", "600")
    ending = asyncio.ensure_future(end_process(process))
    await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert process.returncode == -signal.SIGKILL


STARTS = """
import subprocess, sys
sys.path.insert(0, sys.argv[2])
from hostler.kit.processes import command_ending_with_us
late = ["sh", "-c", f"sleep {sys.argv[1]}; exec \\"$@\\"", "sh", *command_ending_with_us(["sleep", "600"])]
print(subprocess.Popen(late, stdout=subprocess.DEVNULL).pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("delay", [0, 0.3])
async def test_it_ends_with_who_started_it_also_if_that_one_ends_before_it_has_begun(delay: float) -> None:
    starter = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", STARTS, str(delay), str(Path(hostler.__file__).parents[1])),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert starter.stdout is not None
    process = Path("/proc") / (await starter.stdout.readline()).decode().strip()

    def runs() -> bool:
        try:
            return ") Z" not in (process / "stat").read_text()
        except OSError:
            return False

    if not delay:
        await eventually(lambda: (process / "cmdline").read_bytes() == b"sleep\x00600\x00")
    starter.kill()
    await starter.wait()
    await eventually(lambda: not runs())
