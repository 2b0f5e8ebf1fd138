"""`hostler vm console`: the serial port of a machine, on a terminal or between pipes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import sys
import termios
import threading
import tty
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

from hostler.entry.cli.failure import note
from hostler.entry.cli.options import chosen_server, complete, open_client, project_options, server_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hostler.client import Channel
    from hostler.entry.cli.options import Server

ESCAPE = b"\x1d"
"""Ctrl-]"""
CHUNK = 4096
QUIET = 1.0
"""After the end of standard input, the session ends when the machine is silent for this many seconds."""
DRAIN = 10.0
"""The longest wait for that silence, in seconds: some machines are never silent."""


@click.command()
@click.argument("vm")
@project_options
@server_options
def console(vm: str, org: str, project: str) -> None:
    """Open the console of the machine VM.

    At a terminal every key goes to the machine; Ctrl-] leaves the console. Otherwise standard input is sent to the
    machine, and its output is printed until the machine is off, or until the input has ended and the machine is silent.

    \b
    hostler vm console web
    echo uptime | hostler vm console web
    """
    complete(_console(chosen_server(), org, project, vm))


async def _console(server: Server, org: str, project: str, vm: str) -> None:
    async with open_client(server) as client, client.vms.console(org, project, vm) as port:
        session = Session(port)
        if sys.stdin.isatty():
            note(f"{vm}: connected; Ctrl-] leaves")
            with raw_terminal(session.leave):
                off = await session.run(escape=ESCAPE)
        else:
            off = await session.run()
    if off:
        note(f"{vm}: the console has ended, because the machine is off")


class Session:
    """A console between standard input and standard output."""

    def __init__(self, port: Channel) -> None:
        self._port = port
        self._typed: asyncio.Queue[bytes] = asyncio.Queue(16)
        self._heard, self._left = asyncio.Event(), asyncio.Event()

    def leave(self) -> None:
        """End the session."""
        self._left.set()

    async def run(self, escape: bytes | None = None) -> bool:
        """Run until the console ends (True), `escape` is typed, `leave` is called, or input ends and all is silent."""
        read_into(self._typed, chunk=CHUNK, name="console: keys")
        output = asyncio.create_task(self._out(), name="console: output")
        others = [
            asyncio.create_task(self._in(escape), name="console: input"),
            asyncio.create_task(self._left.wait(), name="console: leaving"),
        ]
        try:
            await asyncio.wait((output, *others), return_when=asyncio.FIRST_COMPLETED)
            if others[0].done() and (escape is None or others[0].exception()):
                await self._quiet(output)
            if output.done():
                output.result()
                return True
            if others[0].done():
                others[0].result()
            return False
        finally:
            for task in (output, *others):
                task.cancel()
            await asyncio.gather(output, *others, return_exceptions=True)

    async def _in(self, escape: bytes | None) -> None:
        while data := await self._typed.get():
            before, found, _ = (data, b"", b"") if escape is None else data.partition(escape)
            if before:
                await self._port.write(before)
            if found:
                return

    async def _out(self) -> None:
        while data := await self._port.read():
            self._heard.set()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    async def _quiet(self, output: asyncio.Task[None]) -> None:
        """Wait until the machine has been silent for `QUIET` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN):
                while not output.done():
                    self._heard.clear()
                    heard = asyncio.create_task(self._heard.wait(), name="console: listening")
                    await asyncio.wait((output, heard), timeout=QUIET, return_when=asyncio.FIRST_COMPLETED)
                    heard.cancel()
                    if not self._heard.is_set():
                        return


@contextmanager
def raw_terminal(leave: Callable[[], None]) -> Iterator[None]:
    """Put the terminal into raw mode, and restore it at the end, also if a signal ends the process."""
    before = termios.tcgetattr(sys.stdin)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, leave)
    tty.setraw(sys.stdin)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal may be gone
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)
        note("")


def read_into(queue: asyncio.Queue[bytes], *, chunk: int, name: str) -> None:
    """Start to put standard input into `queue`, up to `chunk` bytes at a time, and empty bytes at its end.

    A thread reads, because a terminal, a pipe and a file can then be read in the same way without blocking the loop.
    """
    loop = asyncio.get_running_loop()

    def read() -> None:
        data = b"?"
        with suppress(RuntimeError, concurrent.futures.CancelledError):  # the loop has ended
            while data:
                try:
                    data = os.read(sys.stdin.fileno(), chunk)
                except (OSError, ValueError):
                    data = b""
                asyncio.run_coroutine_threadsafe(queue.put(data), loop).result()

    threading.Thread(target=read, name=name, daemon=True).start()
