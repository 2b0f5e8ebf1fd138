"""`hostler up`, `replica` and `agent` as real processes, and the command line beside them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hostler.testing.servers import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

START = 60.0
"""Seconds that a process may take to start, on a machine that is busy with other tests."""
PROGRAM = [sys.executable, "-m", "hostler"]


async def until(condition: Callable[[], object], within: float, what: Callable[[], str]) -> None:
    """Wait for it."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, f"not within {within:g} s: {what()}"
        await asyncio.sleep(0.02)


class HostlerProcess(ServerProcess):
    """One of our own processes; `environ` beside what this process has, `before` what it is run by."""

    def __init__(
        self, *arguments: object, folder: Path, environ: dict[str, str] | None = None, before: Sequence[str] = ()
    ) -> None:
        log = folder / f"{arguments[0]}-{len(list(folder.glob('*.out')))}.out"
        set_in = ["env", *(f"{name}={value}" for name, value in (environ or {}).items())]
        super().__init__([*before, *set_in, *PROGRAM, *map(str, arguments)], log)

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    async def says(self, text: str, within: float = START) -> None:
        """Wait until it has said so; it must not end before."""
        await until(lambda: text in self.text or not self.running, within, lambda: f"{text!r}: {self.tail()}")
        assert text in self.text, f"ended with {self.code} without saying {text!r}: {self.tail()}"

    def wait_for(self, text: str, within: float = START) -> None:
        """As `says`, for fixtures without a loop."""
        end = time.monotonic() + within
        while text not in self.text:
            assert self.running, f"ended with {self.code} without saying {text!r}: {self.tail()}"
            assert time.monotonic() < end, f"not within {within:g} s: {text!r}: {self.tail()}"
            time.sleep(0.02)

    async def ends(self, within: float = START) -> int:
        """Wait for its end; the exit code."""
        await until(lambda: not self.running, within, lambda: f"its end: {self.tail()}")
        assert self.code is not None
        return self.code

    async def url(self, word: str = "ready") -> str:
        """Where it serves, once it does."""
        await self.says(f"{word} http")
        found = re.search(rf"{word} (https?://\S+)", self.text)
        assert found is not None
        return found[1]


class Done:
    """What a command did."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def __repr__(self) -> str:
        return f"exit {self.code}\n{self.out}\n{self.err}"

    @property
    def json(self) -> Any:
        return json.loads(self.out)


async def hostler(*arguments: object, stdin: str = "", within: float = 100.0, **environ: str) -> Done:
    """Run a command to its end."""
    process = await asyncio.create_subprocess_exec(
        *PROGRAM,
        *map(str, arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | environ,
    )
    try:
        async with asyncio.timeout(within):
            out, err = await process.communicate(stdin.encode())
    except TimeoutError:
        process.kill()
        await process.wait()
        raise AssertionError(f"hostler {' '.join(map(str, arguments))}: did not end within {within:g} s") from None
    assert process.returncode is not None
    assert "Traceback" not in err.decode(), err.decode()
    return Done(process.returncode, out.decode(), err.decode())


async def well(*arguments: object, **options: Any) -> Done:
    """Run a command that must succeed."""
    done = await hostler(*arguments, **options)
    assert done.code == 0, f"{arguments}: {done}"
    return done
