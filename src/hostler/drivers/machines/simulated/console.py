"""The serial port of a simulated machine: an echo, a prompt, and a few commands.

save TEXT    write TEXT to the disk        show    print the disk               poweroff    shut down
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, Self

from hostler.drivers.machines.simulated import transitions
from hostler.drivers.machines.simulated.host import switched_off
from hostler.kit.plural import counted

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from hostler.drivers.machines.simulated.host import Row
    from hostler.kit.clock import Clock

PROMPT = b"# "
LINE_BYTES = 4_096
BUFFER_BYTES = 64 * 1_024


class Host(Protocol):
    """Methods that a console needs of its driver."""

    clock: Clock

    def expected(self, vm: str) -> Row:
        """Return the machine, running or not. NotFound: it does not exist."""

    async def plug(self, console: SimulatedConsole, vm: str) -> Row: ...

    def unplug(self, console: SimulatedConsole, vm: str) -> None: ...

    def running(self, vm: str, since: float) -> Row | None:
        """Return the machine, if it has run without interruption since then."""

    def ends_at(self, row: Row) -> float | None:
        """Return when it will stop by itself."""

    def guest(self, vm: str, make: Callable[[Row, float], Row]) -> None:
        """Apply a change that the machine makes to itself."""


def output_of(host: Host, vm: str) -> bytes:
    """Return the serial output before any input, generated on demand. NotFound: no such machine."""
    row = host.expected(vm)
    return boot_message(row) if row.boots else b""


def boot_message(row: Row) -> bytes:
    """Return the boot message of a machine."""
    shape = f"{counted(row.spec.cpus, 'cpu')}, {row.spec.memory_mib} MiB"
    return f"[    0.000000] simulated machine {row.number}, boot {row.boots}: {shape}\r\n".encode()


class SimulatedConsole:
    """One connection to a machine's serial port."""

    def __init__(self, host: Host, vm: str) -> None:
        self._host, self._vm = host, vm
        self._since: float | None = None
        self._output, self._typed = bytearray(), bytearray()
        self._stir = asyncio.Event()

    async def __aenter__(self) -> Self:
        row = await self._host.plug(self, self._vm)
        self._since = row.on
        self._say(boot_message(row) + PROMPT)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._host.unplug(self, self._vm)
        self._since = None
        self.stir()

    async def read(self) -> bytes:
        """Return the next output; empty once the machine is off."""
        while not self._output:
            self._stir.clear()
            row = self._row()
            if row is None:
                return b""
            await self._wait_for_stir(self._host.ends_at(row))
        said = bytes(self._output)
        self._output.clear()
        return said

    async def write(self, data: bytes) -> None:
        """Type. Input for a machine that is off is discarded."""
        for byte in data:
            if self._row() is None:
                return
            if byte in b"\r\n":
                self._say(b"\r\n" + self._answer_to(bytes(self._typed)) + PROMPT)
                self._typed.clear()
            elif len(self._typed) < LINE_BYTES:
                self._typed.append(byte)
                self._say(bytes((byte,)))
        await asyncio.sleep(0)

    def stir(self) -> None:
        """Wake up readers: the machine may be off."""
        self._stir.set()

    def _row(self) -> Row | None:
        return None if self._since is None else self._host.running(self._vm, self._since)

    def _say(self, data: bytes) -> None:
        self._output += data
        del self._output[:-BUFFER_BYTES]
        self.stir()

    def _answer_to(self, line: bytes) -> bytes:
        row = self._row()
        word, _, rest = line.partition(b" ")
        if row is None or not line:
            return b""
        if word == b"save":
            self._host.guest(self._vm, lambda row, _: transitions.row_with_text(row, rest.decode(errors="replace")))
            return b"saved\r\n"
        if word == b"show":
            return row.disk.encode() + b"\r\n"
        if word == b"poweroff":
            self._host.guest(self._vm, switched_off)
            return b"off\r\n"
        return line + b"\r\n"

    async def _wait_for_stir(self, at: float | None) -> None:
        """Wait until `stir`, or until the clock reaches `at`."""
        if at is None:
            await self._stir.wait()
            return
        waits = [
            asyncio.ensure_future(self._stir.wait()),
            asyncio.ensure_future(self._host.clock.sleep(max(0.0, at - self._host.clock.now()))),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
