"""The serial ports of a machine: its console, with a bounded log, and the channel between guest and agent.

A guest can write anything at any rate. So output is read at a limited rate, as from a real port, and kept in bounded
buffers. A slow reader loses the oldest output and delays no other reader.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from typing import TYPE_CHECKING, Self

from hostler.drivers.machines.qemu.folder import GUEST_SOCKET, SERIAL_SOCKET
from hostler.drivers.machines.qemu.process import Throttle, reach
from hostler.errors import Invalid, NotFound, Unavailable

if TYPE_CHECKING:
    from types import TracebackType

    from hostler.drivers.machines.qemu.folder import MachineFolder

LOG, OLDER_LOG = "serial.log", "serial.log.1"
LOG_BYTES = 256 * 1024
TAIL_BYTES = 8 * 1024
"""Part of the log that a new console begins with."""
CHANNEL_BYTES = 64 * 1024
"""Maximum of output that a console has not read yet."""
PIECE_BYTES = 4 * 1024
"""Size of a piece of input: other consoles may write in between."""
CONSOLE_RATE, GUEST_RATE = 256 * 1024, 16 * 1024
"""Average bytes per second."""
REST = 0.005
"""Seconds between two reads: a port delivers byte by byte, and a wake-up for each would use most of a core."""
LINE_BYTES = 1024
LINES_KEPT = 64
CONNECTS_WITHIN = 30.0
SENDS_WITHIN = 10.0
_FLUSH_AFTER = 0.1
_buffer = bytearray(16 * 1024)
"""One buffer for all ports: data is copied out of it before the next read."""


class _Port(asyncio.BufferedProtocol):
    """One end of a serial port. Reads are rate-limited; writes wait until the guest takes them."""

    def __init__(self, folder: MachineFolder, socket: str, rate: int) -> None:
        self.folder, self._socket = folder, socket
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._throttle = Throttle(rate, max(rate // 4, len(_buffer)), rest=REST)

    @property
    def connected(self) -> bool:
        return self._transport is not None

    async def connect(self, within: float = CONNECTS_WITHIN) -> None:
        """Connect. Unavailable: its process has ended, or no process listens in time."""
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
        """Disconnect; the guest does not notice."""
        if self._transport is not None:
            self._abort()
            await asyncio.sleep(0)  # the loop closes the socket in its next iteration

    async def write(self, data: bytes) -> None:
        """Send; waits while the guest does not read. Unavailable: not connected."""
        for at in range(0, len(data), PIECE_BYTES):
            if self._transport is not None:
                await self._writable.wait()
            if self._transport is None or self._transport.is_closing():
                raise Unavailable(f"machine {self.folder.name}: its {self._socket} is not connected; start it first")
            self._transport.write(data[at : at + PIECE_BYTES])

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def receive(self, data: bytes) -> None:
        """Take output of the port."""
        raise NotImplementedError

    def silent(self) -> None:
        """Handle the end of the output."""
        raise NotImplementedError

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._writable.set()

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002 - the protocol's
        return _buffer

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(memoryview(_buffer)[:nbytes])
        if self._transport is not None:
            self._throttle.took(self._transport, nbytes)
        self.receive(data)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - the protocol's
        self._transport = None
        self._throttle.stop()
        self._writable.set()  # waiting writers see that the connection is lost
        self.silent()


class Serial(_Port):
    """The console: every attached channel receives its output and may type."""

    def __init__(self, folder: MachineFolder, *, log_bytes: int = LOG_BYTES, rate: int = CONSOLE_RATE) -> None:
        super().__init__(folder, SERIAL_SOCKET, rate)
        self._log = _Log(folder, log_bytes)
        self._consoles: set[Console] = set()

    def attach(self) -> Console:
        """Return a new console channel, to be entered."""
        return Console(self)

    def tail(self, size: int = TAIL_BYTES) -> bytes:
        """Return the last output, also from before the agent's start."""
        return self._log.tail(size)

    def receive(self, data: bytes) -> None:
        self._log.add(data)
        for console in self._consoles:
            console.hear(data)

    def silent(self) -> None:
        self._log.close()
        for console in self._consoles:
            console.stir()

    def join(self, console: Console) -> None:
        if not self.connected:
            raise NotFound(f"machine {self.folder.name}: it has no console because it is off; start it first")
        console.hear(self.tail())
        self._consoles.add(console)

    def leave(self, console: Console) -> None:
        self._consoles.discard(console)


class Console:
    """One channel (`ports.machines.Channel`) to the console. It begins with the end of the log."""

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
        """Return the next output; empty once the machine is off."""
        while not self._held:
            if not self._open or not self._serial.connected:
                return b""
            self._stir.clear()
            await self._stir.wait()
        said = bytes(self._held)
        self._held.clear()
        return said

    async def write(self, data: bytes) -> None:
        """Type. Input for a machine that is off is discarded."""
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
    """Lines between guest and agent. The guest is not trusted, so lines are recognized only by their prefix."""

    def __init__(self, folder: MachineFolder, *, rate: int = GUEST_RATE) -> None:
        super().__init__(folder, GUEST_SOCKET, rate)
        self._begun = bytearray()
        self._skipping = False
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._stir = asyncio.Event()

    async def line(self, *prefixes: str, within: float) -> str:
        """Return the next line with one of these prefixes, discarding those before it.

        Unavailable: none came in time.
        """
        try:
            async with asyncio.timeout(within):
                while True:
                    while self._lines:
                        if (line := self._lines.popleft()).startswith(prefixes):
                            return line
                    if not self.connected:
                        raise Unavailable(f"machine {self.folder.name}: its guest channel is closed because it is off")
                    self._stir.clear()
                    await self._stir.wait()
        except TimeoutError:
            words = " or ".join(map(repr, prefixes))
            raise Unavailable(
                f"machine {self.folder.name}: its guest did not send {words} within {within:g} s"
            ) from None

    async def send(self, text: str, *, within: float = SENDS_WITHIN) -> None:
        """Send a line to the guest. Unavailable: it does not read it, or is off."""
        if not text.isprintable() or len(text) > LINE_BYTES:
            raise Invalid(
                f"machine {self.folder.name}: a message to its guest must be one line of at most {LINE_BYTES}"
            )
        try:
            async with asyncio.timeout(within):
                await self.write(text.encode() + b"\n")
        except TimeoutError:
            raise Unavailable(f"machine {self.folder.name}: its guest does not read its input; try again") from None

    def receive(self, data: bytes) -> None:
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
    """The last output in two files of half the size: the older one is replaced when the newer one is full."""

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
        """Write pending output to disk. On a full disk some of it is lost without notice."""
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
