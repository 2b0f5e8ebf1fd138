"""The machine of a terminal: the state of its lab, and an SSH connection to it."""

from __future__ import annotations

import asyncio
import codecs
import secrets
from contextlib import asynccontextmanager, closing, suppress
from typing import TYPE_CHECKING

import asyncssh
import msgspec

from hostler.entry.ssh import WITHIN, open_bridge, why
from hostler.errors import Damaged, Forbidden, Refused, Unavailable, Uncertain
from hostler.keys.families import HANDLE
from hostler.keys.lab import LAB
from hostler.kit.host import have_a_name
from hostler.model.lab import ORG, LabEvent, LabPhase, lab_project, lab_user
from hostler.model.vm import Step

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from hostler.engine.view import View
    from hostler.entry.ssh import Bridge
    from hostler.kit.clock import Clock
    from hostler.model.lab import Lab, LabNews, LabUser
    from hostler.ports.machines import Channel
    from hostler.ports.store import Store


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
    pinned = _pinned_keys(way)
    have_a_name()
    ended: Bridge | None = None
    try:
        async with channel, open_bridge(channel) as bridge:
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


def _pinned_keys(way: LabRoute) -> list[asyncssh.SSHKey]:
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


STATUS_WITHIN = 5.0
"""Seconds for the view to catch up with a revision read from the store."""
COUNT_EVERY = 1.0
"""Seconds between two counts of waiting users."""
_ENDS = {
    LabEvent.EXPIRED: "its time is over",
    LabEvent.STOPPED: "it was stopped",
    LabEvent.STOPPING: "it was stopped",
    LabEvent.FAILED: "it failed",
}


class LabRoute(msgspec.Struct, frozen=True):
    """How to log in to a lab's machine."""

    vm: str
    node: str
    user: str
    host_keys: tuple[str, ...]
    """Empty: not known, so no login is attempted."""


class LabTerminalStatus:
    """Lab status of all users. Listeners are called with the user whose lab or machine changed."""

    def __init__(self, store: Store, view: View, *, clock: Clock) -> None:
        self._store, self._view, self._clock = store, view, clock
        self._positions: dict[str, int] = {}
        self._counted_at = float("-inf")

    def listen(self, changed: Callable[[str], None]) -> Callable[[], None]:
        """Call `changed` on every change. Return a function that ends the subscription."""
        machines = HANDLE.prefix(org=ORG)

        def lab(key: str) -> None:
            parts = LAB.match(key)
            if parts is not None:
                changed(parts["user"])

        def machine(key: str) -> None:
            if key.startswith(machines):
                parts = HANDLE.match(key)
                if parts is not None:
                    changed(lab_user(parts["project"]))

        ends = [self._view.labs.listen(lab), self._view.handles.listen(machine)]

        def end() -> None:
            for each in ends:
                each()

        return end

    async def fresh(self, user: str) -> Lab | None:
        """Return the user's lab as the store has it now, and wait until the view has it too.

        If the store is unreachable or the record is not readable, return the last known state.
        """
        try:
            entry = await LAB.get(self._store, user=user)
        except (Unavailable, Uncertain, Damaged):
            return self.lab(user)
        if entry is None:
            return None
        try:
            async with asyncio.timeout(STATUS_WITHIN):
                await self._view.labs.reached(entry.mod_revision)
        except TimeoutError:
            raise Unavailable(f"lab of {user}: this server is behind the store; try again") from None
        return entry.value.lab

    def lab(self, user: str) -> Lab | None:
        """Return the user's lab as it was last seen."""
        found = self._record(user)
        return None if found is None else found.lab

    def readable(self, user: str) -> bool:
        """Return whether the result of `lab` is valid: an unreadable record does not mean that the lab is gone."""
        return LAB.fill(user=user) not in self._view.labs.unreadable

    def way(self, user: str, lab: Lab) -> LabRoute | None:
        """Return how to log in to the lab's machine; None: not known yet, as labs may be seen before their machines."""
        entry = self._view.handles.get(org=ORG, project=lab_project(user), vm=lab.vm) if lab.vm else None
        if entry is None:
            return None
        seen = entry.value
        if not seen.node or seen.access is None or seen.readiness is None or seen.readiness.step is not Step.AVAILABLE:
            return None
        return LabRoute(lab.vm, seen.node, lab.user or seen.access.user, seen.access.host_keys)

    def position(self, user: str) -> int | None:
        """Return the user's position among waiting users, from 1; counted on demand, at most once a second."""
        now = self._clock.now()
        if now - self._counted_at >= COUNT_EVERY:
            waiting = sorted(
                (entry.value.lab.requested_at, entry.value.user)
                for entry in self._view.labs.entries.values()
                if entry.value.lab is not None and entry.value.lab.phase is LabPhase.WAITING
            )
            self._positions = {name: number for number, (_, name) in enumerate(waiting, 1)}
            self._counted_at = now
        return self._positions.get(user)

    def ending(self, user: str, generation: int) -> str:
        """Return why the user's lab of that generation is gone, or is stopping."""
        found = self._record(user)
        if found is None:
            return "it is gone"
        if found.generation > generation:
            return "another lab has replaced it"
        if found.lab is not None and found.lab.ending is not None:
            return _refusal_text(found.lab.ending, found.lab.ending_reason)
        last = next((news for news in reversed(found.news) if news.event in _ENDS), None)
        return "it is gone" if last is None else _refusal_text(last.event, last.reason)

    def messages(self, user: str, after: int) -> tuple[LabNews, ...]:
        """Return the messages sent to the user after the event of that number."""
        found = self._record(user)
        news = () if found is None else found.events
        return tuple(one for one in news if one.number > after and one.event is LabEvent.MESSAGE)

    def last(self, user: str) -> int:
        """Return the number of the user's last event; 0: there is none."""
        found = self._record(user)
        return 0 if found is None else found.last_number

    def _record(self, user: str) -> LabUser | None:
        entry = self._view.labs.get(user=user)
        return None if entry is None else entry.value


def _refusal_text(event: LabEvent, reason: str) -> str:
    said = _ENDS.get(event, "it is gone")
    return f"{said} ({reason})" if reason else said
