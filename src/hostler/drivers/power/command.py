"""A power switch that is an operator's program: it is run for one node, and its exit status says what it did."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from hostler.errors import Unavailable, Uncertain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

NODE = "{node}"
"""The argument in whose place the node's name stands."""
CERTAINLY_OFF = 0
OUT_OF_REACH = 3
INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR")
"""All of our environment that the program gets: passwords and tokens may be in the rest."""
KEPT = 4096
"""Bytes of output that are kept: the last ones."""
ENDING = 5.0
"""Seconds for a program that was killed to be gone: one that waits for a device may take longer."""
TOLD = 300
"""Characters of its last line that are told."""


class CommandPower:
    """`ports.power.Power` by a command, its arguments as they are given to the program; no shell reads them.

    Only status 0 says that the node is off. A program that hangs is ended, with all that it started.
    """

    def __init__(
        self, command: Sequence[str], *, timeout: float = 60.0, tell: Callable[[str], None] = lambda _: None
    ) -> None:
        self._command, self._timeout, self._tell = tuple(command), timeout, tell

    async def switch_off(self, node: str) -> bool:
        """Unavailable: the program cannot be started. Uncertain: it did not say that the node is off."""
        if node.startswith("-"):
            self._tell(f"power of node {node}: the command would take this name for an option; it was not run")
            return False
        status, line = await self._run(node)
        said = f": {line}" if line else ", and said nothing"
        if status == CERTAINLY_OFF:
            self._tell(f"power of node {node}: it is off{said}")
            return True
        if status == OUT_OF_REACH:
            self._tell(f"power of node {node}: the command does not reach it{said}")
            return False
        ended = f"ended with status {status}" if status is not None and status > 0 else _killed(status, self._timeout)
        what = f"power of node {node}: the command {ended}{said}; the node may be on or off"
        self._tell(what)
        raise Uncertain(what)

    async def _run(self, node: str) -> tuple[int | None, str]:
        """Its status, None if it took too long, and the last line of what it said."""
        words = [node if word == NODE else word for word in self._command]
        with _Tail.opened() as tail:
            process = await self._started(words, node, tail)
            try:
                async with asyncio.timeout(self._timeout):
                    await process.wait()
            except TimeoutError:
                return None, tail.last_line()
            finally:
                await _end(process)
            return process.returncode, tail.last_line()

    async def _started(self, words: list[str], node: str, tail: _Tail) -> asyncio.subprocess.Process:
        environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
        try:
            # Its output goes into a pipe of our own: asyncio would wait for the end of one of its own, which a program
            # that was left in the background keeps open.
            return await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=tail.inlet,
                stderr=tail.inlet,
                env=environment,
                cwd="/",
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            what = f"power of node {node}: {words[0]} cannot be started: {why}; correct power_command"
            self._tell(what)
            raise Unavailable(what) from None
        finally:
            tail.close_inlet()


class _Tail:
    """The end of what a program says, read while it runs, so that it never waits for us."""

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
        """Our own copy: the program has one."""
        if self.inlet >= 0:
            os.close(self.inlet)
            self.inlet = -1

    def last_line(self) -> str:
        """What it said last. Nobody who still could say something is waited for."""
        self._read()
        lines = [line.strip() for line in self._data.decode(errors="replace").splitlines() if line.strip()]
        shown = "".join(each if each.isprintable() else "?" for each in lines[-1]) if lines else ""
        return shown if len(shown) <= TOLD else f"{shown[:TOLD]}…"

    def _read(self) -> None:
        """What is there; at most so much at once, for there is other work to be done."""
        with suppress(BlockingIOError):
            data = os.read(self._outlet, 65536) if self._reading else b""
            if data:
                self._data = (self._data + data)[-KEPT:]
            elif self._reading:
                self._reading = False
                asyncio.get_running_loop().remove_reader(self._outlet)


def _killed(status: int | None, timeout: float) -> str:
    if status is None:
        return f"did not end within {timeout:g} s"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-status).name}"
    return f"was ended by signal {-status}"


async def _end(process: asyncio.subprocess.Process) -> None:
    """End it with all of its group, if it has not ended by itself. One that cannot be ended is left to itself."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(TimeoutError):
            async with asyncio.timeout(ENDING):
                await process.wait()
