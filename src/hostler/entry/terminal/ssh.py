"""A shell inside a lab's machine, over the channel that its node's agent relays.

The machine's host key is in its record. A server with another host key is refused before anything is sent.
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
    from hostler.entry.terminal.lab_status import LabRoute
    from hostler.ports.machines import Channel

TERM = "xterm-256color"
WINDOW = 64 * 1024
"""Bytes that the machine may send before they are read."""
READ = 16 * 1024
WRITE = 16 * 1024
"""Characters of input per write."""
RESIZE_EVERY = 0.1
"""Seconds between two window sizes sent to the machine."""
SILENT, SILENCES = 15.0, 3
"""Seconds without data before a keepalive, and unanswered keepalives before the machine counts as lost."""
_LOST = (asyncssh.Error, OSError)


class Shell:
    """A login shell with a terminal."""

    def __init__(self, process: asyncssh.SSHClientProcess[bytes]) -> None:
        self._process = process
        self.id = secrets.token_hex(8)
        """Identifies the shell, so that a page knows whether it has already shown it."""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._size: tuple[int, int] | None = None
        self._pause: asyncio.TimerHandle | None = None

    async def read(self) -> str:
        """Return the next output; empty once the shell has ended or the connection is lost."""
        while True:
            try:
                data = await self._process.stdout.read(READ)
            except _LOST:
                data = b""
            text = self._decoder.decode(data, final=not data)
            if text or not data:
                return text

    async def write(self, text: str) -> None:
        """Send input; waits while the machine does not accept it. Input after the end is dropped."""
        for start in range(0, len(text), WRITE):
            try:
                await self._process.stdin.drain()  # first: a cancelled write must not add to the buffer
                self._process.stdin.write(text[start : start + WRITE].encode())
            except _LOST:
                return

    def resize(self, cols: int, rows: int) -> None:
        """Set the window size.

        Of many sizes in a short time only the last is sent: the machine may not read them all, and unread ones are
        buffered.
        """
        self._size = (cols, rows)
        if self._pause is None:
            self._tell_size()

    def close(self) -> None:
        """Stop sending window sizes."""
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
        """Return the exit status after the end; None: the shell was killed, or the connection was lost."""
        try:
            await self._process.wait_closed()
        except _LOST:
            return None
        return None if self._process.exit_signal is not None else self._process.exit_status


@asynccontextmanager
async def shell_in(
    channel: Channel, way: LabRoute, key: asyncssh.SSHKey, size: tuple[int, int]
) -> AsyncIterator[Shell]:
    """Open a shell in the machine over the channel; this enters and leaves the channel.

    Refused: the host key is not the machine's, or is not known. Forbidden: the machine does not accept the key.
    Unavailable, and errors of the channel: not possible at present.
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
            "the machine: the SSH server has another host key than the machine, so it is not the machine;"
            " nothing was sent to it. Tell the operator of the labs"
        ) from None
    except asyncssh.PermissionDenied:
        raise Forbidden(
            f"the machine: it refuses the login of {way.user} with this server's key; all servers need the lab_key of"
            " the"
            " leader. Tell the operator of the labs"
        ) from None
    except (*_LOST, TimeoutError) as error:
        known = None if ended is None else ended.error
        raise known or Unavailable(f"the machine: its SSH server does not answer ({why(error)})") from None


@asynccontextmanager
async def _logged_in(
    bridge: Bridge, way: LabRoute, key: asyncssh.SSHKey, pinned: list[asyncssh.SSHKey]
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


def _pinned(way: LabRoute) -> list[asyncssh.SSHKey]:
    try:
        pinned = [asyncssh.import_public_key(text) for text in way.host_keys]
    except asyncssh.KeyImportError:
        pinned = []
    if not pinned:
        raise Refused(
            "the machine: its host key is not known, so the server cannot be verified; nothing was sent. Tell"
            " the operator of the labs"
        )
    return pinned
