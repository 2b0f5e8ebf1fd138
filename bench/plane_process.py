"""A server as a separate process, and its processor time and memory from /proc."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from bench.child import child_environ
from hostler.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

TICKS = os.sysconf("SC_CLK_TCK")
PATIENCE = 60.0
PARTING = 15.0


class Process:
    """A running process and its output so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.told: list[str] = []
        self._more = asyncio.Event()
        self.reading = asyncio.create_task(self._read(), name="bench: reading")

    async def says(self, text: str, within: float = PATIENCE) -> str:
        """Return what follows `text` in the first line that contains it, now or later.

        Unavailable: the process ends, or does not print it in time.
        """
        try:
            async with asyncio.timeout(within):
                while True:
                    self._more.clear()
                    for line in self.told:
                        if text in line:
                            return line.partition(text)[2].strip()
                    if self.reading.done():
                        raise Unavailable(f"server: ended before it printed {text!r}: {' | '.join(self.told[-3:])}")
                    await self._more.wait()
        except TimeoutError:
            raise Unavailable(f"server: did not print {text!r} within {within:g} s") from None

    def cpu(self) -> float:
        """Return the processor seconds so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory_mib(self, field: str) -> float:
        """Return `VmRSS`, the current memory, or `VmHWM`, the peak."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) / 1024
        raise Unavailable(f"server: {field} not found in /proc")

    async def end(self) -> None:
        """Ask the process to end, and kill it if it does not."""
        if self._process.returncode is None:
            self._process.terminate()
            try:
                async with asyncio.timeout(PARTING):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        await self.reading

    async def _read(self) -> None:
        if self._process.stdout is not None:
            async for line in self._process.stdout:
                self.told.append(line.decode("utf-8", "replace"))
                self._more.set()
        self._more.set()


@asynccontextmanager
async def run_process(arguments: Sequence[str], environ: Mapping[str, str] | None = None) -> AsyncIterator[Process]:
    """Run `python -m …`, and end it with the context."""
    process = Process(
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=child_environ(**(environ or {})),
        )
    )
    try:
        yield process
    finally:
        await process.end()


def token_kept(file: str) -> str:
    """Return the administrator's token, from the file that the replica names: `says("token is kept in ")`."""
    return Path(file).read_text(encoding="ascii").strip()


@asynccontextmanager
async def replica(url: str, folder: Path) -> AsyncIterator[Process]:
    """Run `hostler replica` on the store: view, services, API, and the controllers, as it is the only replica."""
    arguments = ["hostler", "replica", "--store", url, "--data", str(folder / "data"), "--listen", "127.0.0.1:0"]
    async with run_process([*arguments, "--log-level", "warning"], {"HOSTLER_CONFIG": os.devnull}) as process:
        yield process
