"""`hostler vm ssh`: a shell or a command in a machine, on any node."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from hostler.entry.cli.failure import BROKEN_PIPE, note, tell_failure
from hostler.entry.cli.options import chosen_server, complete, open_client, project_options, server_options
from hostler.entry.cli.vm.console import raw_terminal, read_into
from hostler.errors import HostlerError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    import asyncssh

    from hostler.client import Client
    from hostler.entry.cli.options import Server
    from hostler.model.vm_api import VmView


def identity_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--user` and `-i`."""
    user = click.option("-u", "--user", metavar="NAME", help="The login user. Default: the user of the machine.")
    identity = click.option(
        "-i",
        "--identity",
        "identities",
        multiple=True,
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="KEY",
        help="Use only this private key; repeatable. Default: Hostler's own key, and those of ssh-agent and ~/.ssh.",
    )
    return user(identity(command))


@click.command(context_settings={"ignore_unknown_options": False})
@click.argument("vm")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("-t", "--terminal", is_flag=True, help="Give the command a terminal.")
@identity_options
@project_options
@server_options
def ssh(
    *,
    vm: str,
    command: tuple[str, ...],
    terminal: bool,
    user: str | None,
    identities: tuple[Path, ...],
    org: str,
    project: str,
) -> None:
    """Log into the machine VM, or run a COMMAND there and exit with its code.

    The host key of the machine is verified without a prompt. Words after -- are passed on as they are; a single word is
    run as a shell command line. Type `~.` at the start of a line to end a session that hangs.

    \b
    hostler vm ssh web
    hostler vm ssh web -- uname -a
    hostler vm ssh web 'cd /etc && tar c .' > etc.tar
    """
    said = Said.of(command, terminal=terminal)
    run_to_its_code(_ssh(chosen_server(), org, project, vm, said=said, login=Login(user, identities)))


class Said(msgspec.Struct, frozen=True):
    """What to run: a shell command line, or None for an interactive shell; and whether it gets a terminal."""

    line: str | None
    terminal: bool

    @classmethod
    def of(cls, command: tuple[str, ...], *, terminal: bool) -> Said:
        """Build it from the command-line arguments."""
        if terminal and not sys.stdin.isatty():
            raise click.UsageError("--terminal: standard input is not a terminal; leave it out")
        line = command[0] if len(command) == 1 else shlex.join(command) if command else None
        return cls(line, terminal or (line is None and sys.stdin.isatty()))


class Login(msgspec.Struct, frozen=True):
    """The login user and keys: `identities` only, or without them the default keys and `also`."""

    user: str | None
    identities: tuple[Path, ...]
    also: tuple[Path, ...] = ()


def run_to_its_code(work: Coroutine[Any, Any, int]) -> None:
    """Exit with the code of the remote command; with 255 on an error, as ssh does."""
    try:
        code = complete(work)
    except HostlerError as error:
        tell_failure(error)
        code = 255
    click.get_current_context().exit(code)


async def _ssh(server: Server, org: str, project: str, vm: str, *, said: Said, login: Login) -> int:
    async with open_client(server) as client:
        view = await client.vms.get(org, project, vm)
        return await run_there(client, view, said, login, f"hostler vm ssh {vm}")


async def run_there(client: Client, view: VmView, said: Said, login: Login, again: str) -> int:
    """Run it in the machine and return its exit code. Unavailable: the connection was lost; `again` logs in again."""
    from hostler.entry.ssh import logged_in

    channel = client.vms.ssh(view.org, view.project, view.id)
    async with logged_in(channel, view, user=login.user, identities=login.identities, also=login.also) as connection:
        code = await run(connection, said.line, terminal=said.terminal)
        if code == LOST and connection.is_closed():
            raise Unavailable(f"vm {view.name}: the connection was lost before the end; log in again: {again}")
        return code


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
