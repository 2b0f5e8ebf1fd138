"""Worker processes on one Redis, of Hostler and of peers: start, wait until everything is acknowledged, end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec

from bench.plane_process import TICKS
from hostler.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

PATIENCE = 120.0
LOOK = 0.02
BEGUN = 0.9
"""The clock starts once this fraction of the requests is left, so that the start of the workers is not counted."""
TOLD = 500


class Pace(msgspec.Struct, frozen=True):
    """The rate of acknowledged requests."""

    per_second: float
    cpu_us: float
    """Processor time of all worker processes per request."""


class Crew:
    """Running worker processes, each the leader of a session."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]], log: Path) -> None:
        self._processes, self._log = processes, log

    def check(self) -> None:
        """Check the processes. Unavailable: one of them has ended."""
        if any(process.poll() is not None for process in self._processes):
            raise Unavailable(f"bench: a worker ended: {self.output()[-TOLD:]}")

    def output(self) -> str:
        """Return their output so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def cpu(self) -> float:
        """Return their processor seconds so far, including child processes."""
        sessions, ticks = {process.pid for process in self._processes}, 0
        for name in filter(str.isdecimal, os.listdir("/proc")):
            with suppress(OSError):  # the process has ended
                stat = Path(f"/proc/{name}/stat").read_text(encoding="utf-8", errors="replace")
                fields = stat.rpartition(")")[2].split()
                if int(fields[3]) in sessions:
                    ticks += sum(map(int, fields[11:15]))
        return ticks / TICKS

    def end(self) -> None:
        """Kill the processes and their children."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@asynccontextmanager
async def at_work(
    command: Sequence[str], environ: Mapping[str, str], folder: Path, *, processes: int = 1
) -> AsyncIterator[Crew]:
    """Run several processes of a command while the context is open."""
    crew = Crew([_start(command, environ, folder / "worker.log") for _ in range(processes)], folder / "worker.log")
    try:
        yield crew
    finally:
        await asyncio.to_thread(crew.end)


def _start(command: Sequence[str], environ: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen(
            command,
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


async def left(redis: Any, counts: Sequence[tuple[str, str]]) -> int:
    """Return the number of unacknowledged requests: the sum of these commands on these keys."""
    async with redis.pipeline(transaction=True) as pipe:
        for command, key in counts:
            pipe.execute_command(command, key)
        return sum(await pipe.execute())


async def drain(redis: Any, counts: Sequence[tuple[str, str]], crew: Crew, count: int) -> Pace:
    """Wait until none of `count` is left. Return the rate of the last nine tenths. Unavailable: it took too long."""
    began, at, worked, begun = perf_counter(), count, crew.cpu(), False
    end = began + PATIENCE
    while (rest := await left(redis, counts)) > 0:
        now = perf_counter()
        if not begun and rest <= BEGUN * count:
            began, at, worked, begun = now, rest, crew.cpu(), True
        crew.check()
        if now > end:
            raise Unavailable(
                f"bench: {rest} of {count} requests were left after {PATIENCE:g} s: {crew.output()[-TOLD:]}"
            )
        await asyncio.sleep(LOOK)
    return Pace(at / (perf_counter() - began), (crew.cpu() - worked) * 1e6 / at)
