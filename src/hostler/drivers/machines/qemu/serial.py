"""The serial ports of a machine: its console, with a bounded log, and the channel between the guest and us.

What comes out is whatever a guest likes, as fast as it likes. So it is read at a limited rate, as from a real port, and
kept in bounded buffers; whoever reads slowly loses the oldest of it and holds up nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from typing import TYPE_CHECKING, Self

from hostler.drivers.machines.qemu.folder import GUEST_SOCKET, SERIAL_SOCKET
from hostler.drivers.machines.qemu.socket_io import Throttle, reach
from hostler.errors import Invalid, NotFound, Unavailable

if TYPE_CHECKING:
    from types import TracebackType

    from hostler.drivers.machines.qemu.folder import MachineFolder

LOG, OLDER_LOG = "serial.log", "serial.log.1"
LOG_BYTES = 256 * 1024
TAIL_BYTES = 8 * 1024
"""Of the log, for who comes to a console."""
CHANNEL_BYTES = 64 * 1024
"""That a console has not been asked for yet."""
PIECE_BYTES = 4 * 1024
"""Of what is typed: others may type in between."""
CONSOLE_RATE, GUEST_RATE = 256 * 1024, 16 * 1024
"""Bytes in a second, on average."""
REST = 0.005
"""Seconds between two reads: a port hands over byte by byte, and a wake-up for each would cost most of a core."""
LINE_BYTES = 1024
LINES_KEPT = 64
CONNECTS_WITHIN = 30.0
SENDS_WITHIN = 10.0
_FLUSH_AFTER = 0.1
_buffer = bytearray(16 * 1024)
"""One for all: what was read into it is taken out of it before the next read."""


class _Port(asyncio.BufferedProtocol):
    """One end of a serial port: read at a limited rate; what is written waits until the guest takes it."""

    def __init__(self, folder: MachineFolder, socket: str, rate: int) -> None:
        self.folder, self._socket = folder, socket
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._throttle = Throttle(rate, max(rate // 4, len(_buffer)), rest=REST)

    @property
    def connected(self) -> bool:
        return self._transport is not None

    async def connect(self, within: float = CONNECTS_WITHIN) -> None:
        """Be connected. Unavailable: its process has ended, or nobody listens in time."""
        if self._transport is not None:
            return
        connection = await reach(self.folder, self._socket, within=within)
        try:
            await asyncio.get_running_loop().create_connection(lambda: self, sock=connection)
        except BaseException:
            self._abort()
            connection.close()
            raise

    async def aclose(self) -> None:
        """Hang up; the guest is not disturbed."""
        if self._transport is not None:
            self._abort()
            await asyncio.sleep(0)  # the loop lets go of the socket in its next turn

    async def write(self, data: bytes) -> None:
        """Send; waits while the guest does not take it. Unavailable: there is nobody to take it."""
        for at in range(0, len(data), PIECE_BYTES):
            if self._transport is not None:
                await self._writable.wait()
            if self._transport is None or self._transport.is_closing():
                raise Unavailable(f"machine {self.folder.name}: its {self._socket} is not connected; is it off?")
            self._transport.write(data[at : at + PIECE_BYTES])

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def heard(self, data: bytes) -> None:
        """What came out."""
        raise NotImplementedError

    def silent(self) -> None:
        """Nothing more comes out."""
        raise NotImplementedError

    # What the loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._writable.set()

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002 - the protocol's
        return _buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(memoryview(_buffer)[:nbytes])
        if self._transport is not None:
            self._throttle.took(self._transport, nbytes)
        self.heard(data)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - the protocol's
        self._transport = None
        self._throttle.stop()
        self._writable.set()  # who waits sees that it is over
        self.silent()


class Serial(_Port):
    """The console: everybody who is there hears it and may type."""

    def __init__(self, folder: MachineFolder, *, log_bytes: int = LOG_BYTES, rate: int = CONSOLE_RATE) -> None:
        super().__init__(folder, SERIAL_SOCKET, rate)
        self._log = _Log(folder, log_bytes)
        self._consoles: set[Console] = set()

    def attach(self) -> Console:
        """A console of its own, to be entered."""
        return Console(self)

    def tail(self, size: int = TAIL_BYTES) -> bytes:
        """The last that came out, also before the agent was started."""
        return self._log.tail(size)

    def heard(self, data: bytes) -> None:
        self._log.add(data)
        for console in self._consoles:
            console.hear(data)

    def silent(self) -> None:
        self._log.close()
        for console in self._consoles:
            console.stir()

    def join(self, console: Console) -> None:
        if not self.connected:
            raise NotFound(f"machine {self.folder.name}: it has no console, for it is off; start it first")
        console.hear(self.tail())
        self._consoles.add(console)

    def leave(self, console: Console) -> None:
        self._consoles.discard(console)


class Console:
    """One channel (`ports.machines.Channel`) to the console. Begins with the last of what was said before."""

    def __init__(self, serial: Serial) -> None:
        self._serial = serial
        self._held = bytearray()
        self._stir = asyncio.Event()
        self._open = False

    async def __aenter__(self) -> Self:
        self._serial.join(self)
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open = False
        self._serial.leave(self)
        self.stir()

    async def read(self) -> bytes:
        """The next output; empty once the machine is off."""
        while not self._held:
            if not self._open or not self._serial.connected:
                return b""
            self._stir.clear()
            await self._stir.wait()
        said = bytes(self._held)
        self._held.clear()
        return said

    async def write(self, data: bytes) -> None:
        """Type. What is typed into a machine that is off goes nowhere."""
        with contextlib.suppress(Unavailable):
            await self._serial.write(data)

    def hear(self, data: bytes) -> None:
        self._held += data
        if len(self._held) > CHANNEL_BYTES:
            del self._held[:-CHANNEL_BYTES]
        self.stir()

    def stir(self) -> None:
        self._stir.set()


class GuestChannel(_Port):
    """Lines between the guest and us. The guest may say anything, so a line is only what it begins with."""

    def __init__(self, folder: MachineFolder, *, rate: int = GUEST_RATE) -> None:
        super().__init__(folder, GUEST_SOCKET, rate)
        self._begun = bytearray()
        self._skipping = False
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._stir = asyncio.Event()

    async def line(self, *prefixes: str, within: float) -> str:
        """The next line that begins with one of them; those before it are forgotten. Unavailable: none came in time."""
        try:
            async with asyncio.timeout(within):
                while True:
                    while self._lines:
                        if (line := self._lines.popleft()).startswith(prefixes):
                            return line
                    if not self.connected:
                        raise Unavailable(f"machine {self.folder.name}: its guest cannot be heard; it is off")
                    self._stir.clear()
                    await self._stir.wait()
        except TimeoutError:
            words = " or ".join(map(repr, prefixes))
            raise Unavailable(
                f"machine {self.folder.name}: its guest did not say {words} within {within:g} s"
            ) from None

    async def send(self, text: str, *, within: float = SENDS_WITHIN) -> None:
        """Say a line to the guest. Unavailable: it does not take it, or is off."""
        if not text.isprintable() or len(text) > LINE_BYTES:
            raise Invalid(
                f"machine {self.folder.name}: what its guest is told must be one line of at most {LINE_BYTES}"
            )
        try:
            async with asyncio.timeout(within):
                await self.write(text.encode() + b"\n")
        except TimeoutError:
            raise Unavailable(f"machine {self.folder.name}: its guest does not listen; try again later") from None

    def heard(self, data: bytes) -> None:
        *ended, rest = data.split(b"\n")
        for part in ended:
            self._add(part)
            if not self._skipping:
                self._lines.append(self._begun.decode(errors="replace").strip("\r"))
            self._begun.clear()
            self._skipping = False
        self._add(rest)
        if ended:
            self._stir.set()

    def silent(self) -> None:
        self._begun.clear()
        self._skipping = False
        self._stir.set()

    def _add(self, part: bytes) -> None:
        if self._skipping or len(self._begun) + len(part) > LINE_BYTES:
            self._begun.clear()
            self._skipping = True
        else:
            self._begun += part


class _Log:
    """The last of what came out, in two files of half the size: the older one goes when the newer one is full."""

    def __init__(self, folder: MachineFolder, limit: int) -> None:
        self._folder, self._half = folder, limit // 2
        self._file, self._size = -1, 0
        self._pending = bytearray()
        self._flush: asyncio.TimerHandle | None = None

    def add(self, data: bytes) -> None:
        self._pending += data
        if len(self._pending) > self._half:
            self.flush()
        elif self._flush is None:
            self._flush = asyncio.get_running_loop().call_later(_FLUSH_AFTER, self.flush)

    def flush(self) -> None:
        """Have on disk what was added. A disk that is full loses some of it: there is nobody to tell."""
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        data, self._pending = self._pending, bytearray()
        with contextlib.suppress(OSError, Unavailable):
            for at in range(0, len(data), self._half):
                self._write(data[at : at + self._half])

    def close(self) -> None:
        self.flush()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def tail(self, size: int) -> bytes:
        self.flush()
        found = b""
        for name in (OLDER_LOG, LOG):
            with contextlib.suppress(OSError, Unavailable):
                found += self._read(name, size)
        return found[-size:]

    def _write(self, data: bytearray) -> None:
        if self._file < 0:
            self._file = self._folder.open_ours(LOG, os.O_RDWR | os.O_APPEND)
            self._size = os.fstat(self._file).st_size
        room = max(0, self._half - self._size)
        self._size += os.write(self._file, data[:room])
        if len(data) > room:
            os.close(self._file)
            self._file = -1
            where = self._folder.descriptor
            os.rename(LOG, OLDER_LOG, src_dir_fd=where, dst_dir_fd=where)
            self._write(data[room:])

    def _read(self, name: str, size: int) -> bytes:
        descriptor = os.open(
            name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._folder.descriptor
        )
        try:
            length = os.fstat(descriptor).st_size
            return os.pread(descriptor, size, max(0, length - size))
        finally:
            os.close(descriptor)
