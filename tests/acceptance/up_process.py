"""`hostler up`, `replica` and `agent` as real processes, and the command line beside them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import running
from harness import pace

from hostler.testing.servers import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.fork_server import ForkedProcess

START = 20.0
"""Seconds that a process may take to start: `until` waits longer where the machine is slow."""
PROGRAM = [sys.executable, "-m", "hostler"]


async def until(condition: Callable[[], object], within: float, what: Callable[[], str]) -> None:
    """Wait for it, longer where the machine is slow."""
    patience = pace.patience(within)
    end = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < end, f"not within {patience:g} s: {what()}"
        await asyncio.sleep(0.02)


class ForkedServer(ServerProcess):
    """A process that the fork server of this worker forks: `hostler`, or a script. Its output goes to `log`."""

    def __init__(self, arguments: Sequence[object], log: Path, **options: Any) -> None:
        self.log, self.killed = log, False
        with log.open("ab") as output:
            self._process = running.fork_server().start(  # type: ignore[assignment]
                arguments, stdout=output.fileno(), stderr=output.fileno(), **options
            )


STAND_BY = {"HOSTLER_ACQUISITION_TIMEOUT": "0"}
"""Replicas of tests stand by without a limit: on a busy machine a test may take longer than the default of 120 s."""


class HostlerProcess(ForkedServer):
    """One of our own processes, forked; `environ` beside what this process has.

    `before`: what it is run by; then an interpreter of its own is started. `network`: the namespace it is in.
    `script`: a program that is run instead of Hostler's.
    """

    def __init__(
        self,
        *arguments: object,
        folder: Path,
        environ: dict[str, str] | None = None,
        before: Sequence[str] = (),
        network: str | None = None,
        script: Path | None = None,
    ) -> None:
        log = folder / f"{arguments[0]}-{len(list(folder.glob('*.out')))}.out"
        environ = STAND_BY | (environ or {})
        if before:
            set_in = ["env", *(f"{name}={value}" for name, value in environ.items())]
            ServerProcess.__init__(self, [*before, *set_in, *PROGRAM, *map(str, arguments)], log)
        else:
            super().__init__(arguments, log, environ=os.environ | environ, network=network, script=script)

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
        patience = pace.patience(within)
        end = time.monotonic() + patience
        while text not in self.text:
            assert self.running, f"ended with {self.code} without saying {text!r}: {self.tail()}"
            assert time.monotonic() < end, f"not within {patience:g} s: {text!r}: {self.tail()}"
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


async def hostler(*arguments: object, stdin: str = "", within: float = 30.0, **environ: str) -> Done:
    """Run a command to its end, forked."""
    within = pace.patience(within)
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin.encode())
        given.seek(0)
        process = running.fork_server().start(
            arguments,
            environ=os.environ | environ,
            stdin=given.fileno(),
            stdout=out.fileno(),
            stderr=err.fileno(),
        )
        try:
            async with asyncio.timeout(within):
                await _ended(process)
        except TimeoutError:
            raise AssertionError(f"hostler {' '.join(map(str, arguments))}: did not end within {within:g} s") from None
        finally:
            process.kill()
            code = process.wait()
        said, complained = (_read(stream) for stream in (out, err))
    assert "Traceback" not in complained, complained
    return Done(code, said, complained)


async def _ended(process: ForkedProcess) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(process, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(process)


def _read(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode()


async def well(*arguments: object, **options: Any) -> Done:
    """Run a command that must succeed."""
    done = await hostler(*arguments, **options)
    assert done.code == 0, f"{arguments}: {done}"
    return done


def token_told(text: str) -> str:
    """Return the administrator's token that a replica has just made, from the file that it names."""
    path = text.partition("the administrator's token is kept in ")[2].splitlines()[0]
    return Path(path).read_text(encoding="ascii").strip()
