"""Power switches that are programs, run to their end within a time limit.

An operator's own program is run for one node, and its exit status says what it did. `ipmitool` speaks IPMI 2.0 with a
management board; it gets the password as the name of a file.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import msgspec

from hostler.drivers.power.bmc import OFF, show
from hostler.errors import Invalid, Unavailable, Uncertain
from hostler.settings.password import read_private_password
from hostler.settings.value import NODE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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
        process = await _start_program(words, tail)
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


async def _start_program(words: Sequence[str], tail: _Tail) -> asyncio.subprocess.Process:
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


CERTAINLY_OFF = 0
OUT_OF_REACH = 3


class CommandPower:
    """`ports.power.Power` by a command. Arguments are passed to the program unchanged, without a shell.

    Only status 0 confirms that the node is off. A program that hangs is killed, with all processes that it started.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        setting: str = "power_command",
        timeout: float = 60.0,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._command, self._setting, self._timeout, self._tell = tuple(command), setting, timeout, tell

    async def switch_off(self, node: str) -> bool:
        """Run the program. Unavailable: it cannot be started. Uncertain: it did not confirm that the node is off."""
        if node.startswith("-"):
            self._tell(f"power of node {node}: the command would take this name for an option; it was not run")
            return False
        words = [node if word == NODE else word for word in self._command]
        try:
            ended = await run_program(words, timeout=self._timeout)
        except (OSError, ValueError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            what = f"power of node {node}: {words[0]} cannot be started: {why}; correct {self._setting}"
            self._tell(what)
            raise Unavailable(what) from None
        said = f": {ended.last_line}" if ended.lines else ", without output"
        if ended.status == CERTAINLY_OFF:
            self._tell(f"power of node {node}: off{said}")
            return True
        if ended.status == OUT_OF_REACH:
            self._tell(f"power of node {node}: the command does not reach it{said}")
            return False
        end = describe_end(ended.status, self._timeout)
        what = f"power of node {node}: the command {end}{said}; the node may be on or off"
        self._tell(what)
        raise Uncertain(what)


STATES = {"Chassis Power is on": "on", "Chassis Power is off": OFF}
TAKEN = "Chassis Power Control: Down/Off"
REFUSED = "Set Chassis Power Control to Down/Off failed"
GUID = "System GUID"


class IpmiAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a board, and the account to use."""

    host: str
    port: int
    user: str
    password_file: str
    cipher: int | None = None
    """The cipher suite; None: the strongest that both the tool and the board support."""
    privilege: str = "ADMINISTRATOR"
    uuid: str | None = None
    """The system's GUID, as `ipmitool mc guid` shows it."""


class IpmiBmc:
    """`drivers.power.bmc.Bmc` over the network (RMCP+)."""

    def __init__(self, address: IpmiAddress, *, program: str = "ipmitool") -> None:
        self._address, self._program = address, program
        host = f"[{address.host}]" if ":" in address.host else address.host
        self.name = f"ipmi://{host}:{address.port}"

    async def read_state(self, within: float) -> str:
        """Return the power state. Unavailable: no answer, or an answer of another system."""
        loop = asyncio.get_running_loop()
        end = loop.time() + within
        if self._address.uuid is not None:
            ended = await self._run("mc", "guid", within=within)
            found = {line.partition(":")[2].strip().casefold() for line in ended.lines if line.startswith(GUID)}
            if ended.status != 0 or len(found) != 1:
                raise Unavailable(self._failure("mc guid", ended, within))
            if found != {self._address.uuid.casefold()}:
                theirs = show(found.pop())
                what = f"{self.name}: has uuid {theirs!r}, not {self._address.uuid!r}"
                raise Unavailable(f"{what}; correct the URL: this is another system")
        ended = await self._run("chassis", "power", "status", within=max(end - loop.time(), 0.01))
        states = {STATES[line] for line in ended.lines if line in STATES}
        if ended.status != 0 or len(states) != 1:
            raise Unavailable(self._failure("chassis power status", ended, within))
        return states.pop()

    async def request_off(self, within: float) -> None:
        """Request power-off. Unavailable: the board refused. Uncertain: the tool does not confirm that it accepted."""
        ended = await self._run("chassis", "power", "off", within=within)
        if ended.status == 0 and TAKEN in ended.lines:
            return
        refusal = next((line for line in ended.lines if line.startswith(REFUSED)), None)
        if refusal is not None:
            raise Unavailable(f"{self.name}: {show(refusal)}; check the board")
        raise Uncertain(self._failure("chassis power off", ended, within))

    async def _run(self, *command: str, within: float) -> Ended:
        """Run ipmitool. Unavailable: it was not run."""
        address = self._address
        try:
            # The tool reads the file itself, and would accept one that all users can read.
            await asyncio.to_thread(read_private_password, address.password_file, self.name)
        except Invalid as error:
            raise Unavailable(str(error)) from None
        words = [self._program, "-I", "lanplus", "-H", address.host, "-p", str(address.port), "-U", address.user]
        words += ["-f", address.password_file, "-L", address.privilege]
        words += [] if address.cipher is None else ["-C", str(address.cipher)]
        try:
            return await run_program([*words, *command], timeout=within)
        except (OSError, ValueError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)
            what = f"{self.name}: {self._program} cannot be started: {why.lower()}; install ipmitool"
            raise Unavailable(what) from None

    def _failure(self, command: str, ended: Ended, within: float) -> str:
        end = describe_end(ended.status, within)
        said = f" ({show(ended.last_line)})" if ended.lines else ""
        return f"{self.name}: ipmitool {command} {end}{said}; check address, user, password_file and cipher"
