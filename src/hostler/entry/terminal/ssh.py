"""A shell inside a lab's machine: over the channel that its node's agent relays, and never in a stranger's machine.

The machine's host key stands in its record: whoever answers with another one is refused before anything is said.
"""

from __future__ import annotations

import asyncio
import codecs
import secrets
from contextlib import asynccontextmanager, closing, suppress
from typing import TYPE_CHECKING

import asyncssh

from hostler.entry.ssh import WITHIN, bridged, why
from hostler.errors import Forbidden, Refused, Unavailable
from hostler.kit.local_user import have_a_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hostler.entry.ssh import Bridge
    from hostler.entry.terminal.lab_status import Way
    from hostler.ports.machines import Channel

TERM = "xterm-256color"
WINDOW = 64 * 1024
"""Bytes that the machine may say before we have read them."""
READ = 16 * 1024
WRITE = 16 * 1024
"""Characters that are typed at once."""
RESIZE_EVERY = 0.1
"""Seconds between two sizes of the window that the machine is told."""
SILENT, SILENCES = 15.0, 3
"""Seconds of silence after which the machine is asked for a sign of life, and how often before it counts as lost."""
_LOST = (asyncssh.Error, OSError)


class Shell:
    """A login shell with a terminal."""

    def __init__(self, process: asyncssh.SSHClientProcess[bytes]) -> None:
        self._process = process
        self.id = secrets.token_hex(8)
        """Tells a page whether this is the shell that it has shown."""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._size: tuple[int, int] | None = None
        self._pause: asyncio.TimerHandle | None = None

    async def read(self) -> str:
        """What it says next; empty once it has ended, or is lost."""
        while True:
            try:
                data = await self._process.stdout.read(READ)
            except _LOST:
                data = b""
            text = self._decoder.decode(data, final=not data)
            if text or not data:
                return text

    async def write(self, text: str) -> None:
        """Type; waits while the machine does not take it. What comes after its end goes nowhere."""
        for start in range(0, len(text), WRITE):
            try:
                await self._process.stdin.drain()  # first: who gave up waiting must not add to what waits
                self._process.stdin.write(text[start : start + WRITE].encode())
            except _LOST:
                return

    def resize(self, cols: int, rows: int) -> None:
        """The window has another size. Of many in a short time the machine hears the last: it may not take them all,
        and what it does not take is kept for it.
        """
        self._size = (cols, rows)
        if self._pause is None:
            self._tell_size()

    def close(self) -> None:
        """Nobody is told of a size any more."""
        if self._pause is not None:
            self._pause.cancel()

    def _tell_size(self) -> None:
        self._pause = None
        if self._size is None:
            return
        size, self._size = self._size, None
        with suppress(*_LOST):
            self._process.change_terminal_size(*size)
        self._pause = asyncio.get_running_loop().call_later(RESIZE_EVERY, self._tell_size)

    async def exit_status(self) -> int | None:
        """After the end: with what it ended by itself; None: it was killed, or the machine is lost."""
        try:
            await self._process.wait_closed()
        except _LOST:
            return None
        return None if self._process.exit_signal is not None else self._process.exit_status


@asynccontextmanager
async def shell_in(channel: Channel, way: Way, key: asyncssh.SSHKey, size: tuple[int, int]) -> AsyncIterator[Shell]:
    """A shell in the machine over the channel, which this enters and leaves.

    Refused: it is not the machine that answers, or nobody could tell. Forbidden: it does not take the key. Unavailable,
    and what the channel raises: not now.
    """
    pinned = _pinned(way)
    have_a_name()
    ended: Bridge | None = None
    try:
        async with channel, bridged(channel) as bridge:
            ended = bridge
            async with _logged_in(bridge, way, key, pinned) as connection:
                async with asyncio.timeout(WITHIN):
                    process: asyncssh.SSHClientProcess[bytes] = await connection.create_process(
                        term_type=TERM, term_size=size, encoding=None, stderr=asyncssh.STDOUT, window=WINDOW
                    )
                with closing(Shell(process)) as shell:
                    yield shell
    except asyncssh.HostKeyNotVerifiable:
        raise Refused(
            "the machine: who answered has another host key than the machine was made with, so it is not the machine;"
            " nothing was sent to it. Tell whoever runs the labs"
        ) from None
    except asyncssh.PermissionDenied:
        raise Forbidden(
            f"the machine: it does not let {way.user} in with this server's key; all servers need the lab_key that the"
            " leader has. Tell whoever runs the labs"
        ) from None
    except (*_LOST, TimeoutError) as error:
        known = None if ended is None else ended.error
        raise known or Unavailable(f"the machine: its SSH server does not answer ({why(error)})") from None


@asynccontextmanager
async def _logged_in(
    bridge: Bridge, way: Way, key: asyncssh.SSHKey, pinned: list[asyncssh.SSHKey]
) -> AsyncIterator[asyncssh.SSHClientConnection]:
    async with asyncio.timeout(WITHIN):
        connection = await asyncssh.connect(
            way.vm,
            sock=bridge.theirs,
            config=None,
            known_hosts=(pinned, [], []),
            username=way.user,
            client_keys=[key],
            agent_path=None,
            preferred_auth="publickey",
            gss_host=None,
            keepalive_interval=SILENT,
            keepalive_count_max=SILENCES,
        )
    try:
        yield connection
    finally:
        connection.abort()
        await connection.wait_closed()


def _pinned(way: Way) -> list[asyncssh.SSHKey]:
    try:
        pinned = [asyncssh.import_public_key(text) for text in way.host_keys]
    except asyncssh.KeyImportError:
        pinned = []
    if not pinned:
        raise Refused(
            "the machine: its host key is not known, so anybody could answer in its place; nothing was sent. Tell"
            " whoever runs the labs"
        )
    return pinned
