"""A command or a shell in a machine, connected to our standard input and output."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from hostler.entry.cli.failure import BROKEN_PIPE, note
from hostler.entry.cli.vm.console import raw_terminal, read_into

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import asyncssh

CHUNK = 64 * 1024
LOST = 255
"""The exit code if the remote side did not report one, as with ssh."""
GRACE = 3.0
"""Seconds that the remote command has to end after a signal was passed on."""
PASSED_ON = {signal.SIGINT: "INT", signal.SIGTERM: "TERM", signal.SIGHUP: "HUP"}


async def run(connection: asyncssh.SSHClientConnection, command: str | None, *, terminal: bool) -> int:
    """Run to the end and return the exit code, or 128 plus the number of the signal that ended it."""
    more: dict[str, Any] = {}
    if terminal:
        columns, rows = shutil.get_terminal_size()
        more = {"term_type": os.environ.get("TERM") or "dumb", "term_size": (columns, rows, 0, 0)}
    if terminal:
        size = _window()
        session = Session(await connection.create_process(command, encoding=None, **more))
        with raw_terminal(session.leave), session.resizing(size):
            return await session.run(escape=True)
    with _caught() as early:  # the command may already run before we know that it started
        session = Session(await connection.create_process(command, encoding=None))
        with session.signals(early):
            return await session.run()


@contextmanager
def _caught() -> Iterator[list[int]]:
    """Collect signals that arrive now, to pass them on later."""
    loop = asyncio.get_running_loop()
    early: list[int] = []
    for number in PASSED_ON:
        loop.add_signal_handler(number, early.append, number)
    try:
        yield early
    finally:
        for number in PASSED_ON:
            loop.remove_signal_handler(number)


def _window() -> os.terminal_size | None:
    try:
        return os.get_terminal_size(sys.stdin.fileno())
    except OSError:  # not a terminal
        return None


class Session:
    """One remote command."""

    def __init__(self, process: asyncssh.SSHClientProcess[bytes]) -> None:
        self._process = process
        self._typed: asyncio.Queue[bytes] = asyncio.Queue(16)
        self._left = asyncio.Event()
        self._signal: int | None = None

    def leave(self) -> None:
        """End the session now."""
        self._left.set()

    async def run(self, *, escape: bool = False) -> int:
        """Run until the remote side ends and all output is copied, or we leave (`~.` after a new line if `escape`)."""
        read_into(self._typed, chunk=CHUNK, name="ssh: keys")
        outputs = [
            asyncio.create_task(_copy(self._process.stdout, sys.stdout.fileno()), name="ssh: output"),
            asyncio.create_task(_copy(self._process.stderr, sys.stderr.fileno()), name="ssh: errors"),
        ]
        ended = asyncio.create_task(self._ended(outputs), name="ssh: end")
        leaving = asyncio.create_task(self._left.wait(), name="ssh: leaving")
        typing = asyncio.create_task(self._in(escape=escape), name="ssh: input")
        try:
            await asyncio.wait((ended, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                return 128 + self._signal if self._signal is not None else LOST
            ended.result()
            return self._code()
        except BrokenPipeError:
            return BROKEN_PIPE
        finally:
            for task in (ended, leaving, typing, *outputs):
                task.cancel()
            await asyncio.gather(ended, leaving, typing, *outputs, return_exceptions=True)
            self._process.close()

    @contextmanager
    def signals(self, early: Sequence[int] = ()) -> Iterator[None]:
        """Pass signals on to the remote command, also those in `early`. Leave if it does not end within `GRACE`."""
        loop = asyncio.get_running_loop()
        for number in PASSED_ON:
            loop.add_signal_handler(number, self._passed_on, number)
        for came in early:
            self._passed_on(came)
        try:
            yield
        finally:
            for number in PASSED_ON:
                loop.remove_signal_handler(number)

    @contextmanager
    def resizing(self, size: os.terminal_size | None) -> Iterator[None]:
        """Report changes of the window size to the remote side; also now, if it differs from `size`."""
        loop = asyncio.get_running_loop()

        def resized() -> None:
            columns, rows = os.get_terminal_size(sys.stdin.fileno())
            with suppress(OSError):
                self._process.change_terminal_size(columns, rows)

        loop.add_signal_handler(signal.SIGWINCH, resized)
        if _window() != size:  # it changed while the remote command was starting
            resized()
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGWINCH)

    # Private

    async def _ended(self, outputs: list[asyncio.Task[None]]) -> None:
        await asyncio.gather(*outputs)
        await self._process.wait_closed()

    def _passed_on(self, number: int) -> None:
        if self._signal is not None:  # a second signal: leave at once
            self.leave()
            return
        self._signal = number
        with suppress(OSError):  # the command has ended
            self._process.send_signal(PASSED_ON[signal.Signals(number)])
        asyncio.get_running_loop().call_later(GRACE, self.leave)

    def _code(self) -> int:
        status, ended_by = self._process.exit_status, self._process.exit_signal
        if ended_by is not None:
            number = getattr(signal, f"SIG{ended_by[0]}", None)
            note(f"ended by signal {ended_by[0]}")
            return LOST if number is None else 128 + number
        if status is None or status < 0:
            return LOST if self._signal is None else 128 + self._signal
        return status

    async def _in(self, *, escape: bool) -> None:
        keys = Escape()
        with suppress(OSError):  # the command has ended, or has closed its input
            while data := await self._typed.get():
                sent = keys.pressed(data) if escape else data
                if sent is None:
                    self.leave()
                    return
                self._process.stdin.write(sent)
                await self._process.stdin.drain()
            self._process.stdin.write_eof()


class Escape:
    """Detects `~.` at the start of a line, with which the user leaves a session that hangs; `~~` sends one `~`."""

    def __init__(self) -> None:
        self._fresh, self._tilde = True, False

    def pressed(self, data: bytes) -> bytes | None:
        """Return the bytes to send; None: `~.` was typed."""
        sent = bytearray()
        for byte in data:
            if self._tilde:
                self._tilde = False
                if byte == ord("."):
                    return None
                sent += b"~" if byte == ord("~") else bytes((ord("~"), byte))
                self._fresh = byte in b"\r\n"
            elif self._fresh and byte == ord("~"):
                self._tilde = True
            else:
                sent.append(byte)
                self._fresh = byte in b"\r\n"
        return bytes(sent)


async def _copy(stream: asyncssh.SSHReader[bytes], descriptor: int) -> None:
    """Copy the whole stream. Write in a thread, so that a slow reader of our output does not block the heartbeats."""
    while data := await stream.read(CHUNK):
        await asyncio.to_thread(write_all, descriptor, data)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all data, also if the descriptor accepts only a part at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
