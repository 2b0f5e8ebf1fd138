"""Run a program to its end within a time limit, and keep the end of its output."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR")
"""The environment variables that the program gets: the others may contain passwords and tokens."""
KEPT = 4096
"""Bytes of output that are kept: the last ones."""
ENDING = 5.0
"""Seconds for a killed program to be gone: one that waits for a device may take longer."""
TOLD = 300
"""Characters of one line that are kept."""


class Ended(msgspec.Struct, frozen=True):
    """How a program ended."""

    status: int | None
    """Exit status. None: it did not end in time, and was killed. Below 0: the signal that ended it."""
    lines: tuple[str, ...]
    """The last lines of its output, including errors, without empty lines."""

    @property
    def last_line(self) -> str:
        """The last line of output; empty: there was no output."""
        return self.lines[-1] if self.lines else ""


async def run_program(words: Sequence[str], *, timeout: float) -> Ended:
    """Run it in `/`, without input. OSError, ValueError: it cannot be started.

    A program that takes too long, or whose caller is cancelled, is killed with all processes that it started.
    """
    with _Tail.opened() as tail:
        process = await _started(words, tail)
        try:
            async with asyncio.timeout(timeout):
                await process.wait()
        except TimeoutError:
            return Ended(None, tail.lines())
        finally:
            await _end(process)
        return Ended(process.returncode, tail.lines())


def describe_end(status: int | None, timeout: float) -> str:
    """Return `ended with status 1`, `was ended by SIGKILL`, `did not end within 60 s`."""
    if status is None:
        return f"did not end within {timeout:g} s"
    if status >= 0:
        return f"ended with status {status}"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-status).name}"
    return f"was ended by signal {-status}"


async def _started(words: Sequence[str], tail: _Tail) -> asyncio.subprocess.Process:
    environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
    try:
        # The output goes into a pipe made here: asyncio would wait until its own pipe is closed, which a process left
        # in the background keeps open.
        return await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=tail.inlet,
            stderr=tail.inlet,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
    finally:
        tail.close_inlet()


class _Tail:
    """The end of a program's output, read while it runs, so that the program never blocks on it."""

    def __init__(self, outlet: int, inlet: int) -> None:
        self.inlet = inlet
        self._outlet, self._data = outlet, b""
        self._reading = True

    @classmethod
    @contextmanager
    def opened(cls) -> Iterator[_Tail]:
        outlet, inlet = os.pipe()
        os.set_blocking(outlet, False)
        tail, loop = cls(outlet, inlet), asyncio.get_running_loop()
        loop.add_reader(outlet, tail._read)
        try:
            yield tail
        finally:
            loop.remove_reader(outlet)
            tail.close_inlet()
            os.close(outlet)

    def close_inlet(self) -> None:
        """Close this process's copy of the write end; the program has its own."""
        if self.inlet >= 0:
            os.close(self.inlet)
            self.inlet = -1

    def lines(self) -> tuple[str, ...]:
        """Return the lines so far: a background process that keeps the pipe open is not waited for."""
        self._read()
        lines = [line.strip() for line in self._data.decode(errors="replace").splitlines() if line.strip()]
        shown = ("".join(each if each.isprintable() else "?" for each in line) for line in lines)
        return tuple(line if len(line) <= TOLD else f"{line[:TOLD]}…" for line in shown)

    def _read(self) -> None:
        """Read what is available, bounded, so that other work is not delayed."""
        with suppress(BlockingIOError):
            data = os.read(self._outlet, 65536) if self._reading else b""
            if data:
                self._data = (self._data + data)[-KEPT:]
            elif self._reading:
                self._reading = False
                asyncio.get_running_loop().remove_reader(self._outlet)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill it with its process group, if it has not ended by itself. A program that cannot be killed is abandoned."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(TimeoutError):
            async with asyncio.timeout(ENDING):
                await process.wait()
