"""All terminals of a server: one per user, limited in number, ended with the server."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from hostler.entry.server.logs import logger
from hostler.entry.ssh import terminal_key
from hostler.entry.terminal import protocol
from hostler.entry.terminal.machine import LabTerminalStatus
from hostler.entry.terminal.session import Terminal, TerminalEnv
from hostler.errors import Conflict, HostlerError, NotFound, Unavailable
from hostler.model.lab import LabPhase

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    import asyncssh

    from hostler.engine.view import View
    from hostler.entry.terminal.session import Screen
    from hostler.kit.clock import Clock
    from hostler.ports.machines import Peers
    from hostler.ports.store import Store


NOTE_EVERY = 60.0
"""Seconds between two notes that a terminal is open; much shorter than the idle time after which a lab ends."""
NOTE_AGAIN = 1.0
"""Seconds before a failed note is retried."""
GOODBYE = 2.0
"""Time limit in seconds for the last notes when the server closes."""


class TerminalConfig(NamedTuple):
    """Parameters of the terminals of one server."""

    key: Path | None
    """Path of the private key for logins; None: no terminals here."""
    grace: float
    """Seconds for which a shell survives a disconnect."""
    most: int
    """Limit of terminals at the same time."""


class TerminalSessions:
    """The terminals of one server.

    `attend`: called with user, generation and time when a browser connects or disconnects, and once a minute
    in between.
    """

    def __init__(
        self,
        store: Store,
        view: View,
        peers: Peers,
        config: TerminalConfig,
        *,
        clock: Clock,
        attend: Callable[[str, int, float], Awaitable[None]] | None = None,
    ) -> None:
        self._outlook = LabTerminalStatus(store, view, clock=clock)
        self._config, self._path, self._peers, self._clock = config, config.key, peers, clock
        self._key: tuple[asyncssh.SSHKey, str] | None = None
        self._terminals: dict[str, Terminal] = {}
        self._lives: dict[Terminal, asyncio.Task[None]] = {}
        self._deaf: Callable[[], None] | None = None
        self._closing = False
        self._attend, self._moved = attend, asyncio.Event()
        self._unnoted: dict[tuple[str, int], float] = {}  # the last time at which a terminal of this lab was open
        self._noting: asyncio.Task[None] | None = None
        self._log = logger(part="terminals")

    def __len__(self) -> int:
        return len(self._lives)

    async def enter(self, user: str, tell: Callable[[], Awaitable[None]], *, everything: bool = False) -> Screen:
        """Connect to the user's terminal, which is created if necessary; disconnect any other browser from it.

        `tell` is called first, once the lab is known to exist; if it raises, the other browser stays connected.
        NotFound: the user has no lab. Unavailable: there are too many terminals, or this server has none.
        """
        if self._path is None:
            raise Unavailable("terminal: this server has no key for logins to labs; set lab_key")
        lab = await self._outlook.fresh(user)
        if lab is None and self._outlook.readable(user):
            self.end(user, protocol.NO_LAB, "the lab is gone; the terminal ends with it")
            raise NotFound(f"lab of {user}: not found; start one first")
        if user not in self._terminals:
            self._check_room()
        await tell()
        generation = None if lab is None or (lab.phase is LabPhase.STOPPING and lab.again) else lab.generation
        there = self._terminals.get(user)
        if there is not None and (there.code is not None or generation not in (None, there.generation or generation)):
            self.end(user, protocol.NO_LAB, "another lab has replaced this one; the terminal ends with it")
            there = None
        if there is None:
            there = self._create(user, generation)
        return there.enter(everything=everything)

    async def key(self) -> asyncssh.SSHKey:
        """Return the server's private key. Unavailable: it has none."""
        return (await self._keys())[0]

    async def public_key(self) -> str:
        """Return the public key that machines must accept; empty: the server has no key."""
        return "" if self._path is None else (await self._keys())[1]

    def end(self, user: str, code: int, why: str) -> None:
        """End the user's terminal and its shell, if there is one."""
        terminal = self._terminals.pop(user, None)
        if terminal is not None:
            terminal.end(code, protocol.info(why))
            self._lives[terminal].cancel()

    def close(self) -> None:
        """Start to end all terminals."""
        self._closing = True
        if self._deaf is not None:
            self._deaf()
            self._deaf = None
        for user in list(self._terminals):
            self.end(user, protocol.GOING_AWAY, "the server closes")

    async def aclose(self) -> None:
        """End all terminals, and wait until they have ended."""
        self.close()
        if self._lives:
            await asyncio.wait(list(self._lives.values()))
        if self._noting is not None:
            self._noting.cancel()
            await asyncio.wait((self._noting,))
            with suppress(TimeoutError):
                async with asyncio.timeout(GOODBYE):
                    await self._note()

    # Internal

    def _check_room(self) -> None:
        if self._closing or len(self._lives) >= self._config.most:
            raise Unavailable(f"terminal: this server has {len(self._lives)}, the limit; try again later")

    def _create(self, user: str, generation: int | None) -> Terminal:
        self._check_room()
        if self._deaf is None:
            self._deaf = self._outlook.listen(self._changed)
        if self._noting is None and self._attend is not None:
            self._noting = asyncio.create_task(self._note_all(), name="terminals: which are open")
        env = TerminalEnv(self._outlook, self._peers, self.key, self._clock, self._config.grace)
        terminal = Terminal(user, generation, env, moved=self._has_moved)
        self._terminals[user] = terminal
        life = asyncio.create_task(terminal.run(), name=f"terminal of {user}")
        self._lives[terminal] = life
        life.add_done_callback(lambda ended: self._over(terminal, ended))
        return terminal

    def _over(self, terminal: Terminal, life: asyncio.Task[None]) -> None:
        del self._lives[terminal]
        if self._terminals.get(terminal.user) is terminal:
            del self._terminals[terminal.user]
        error = None if life.cancelled() else life.exception()
        if error is not None:
            self._log.error("terminal failed", user=terminal.user, exc_info=error)

    # Notes of open terminals

    def _has_moved(self, terminal: Terminal) -> None:
        """Record that a browser connected or disconnected."""
        if self._attend is not None and terminal.generation is not None:
            self._unnoted[terminal.user, terminal.generation] = self._clock.wall()
            self._moved.set()

    async def _note_all(self) -> None:
        while True:
            self._moved.clear()
            for terminal in self._lives:
                if terminal.is_attended:
                    self._has_moved(terminal)
            await self._note()
            self._moved.clear()
            wait = NOTE_AGAIN if self._unnoted else NOTE_EVERY
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._moved.wait()

    async def _note(self) -> None:
        for (user, generation), at in list(self._unnoted.items()):
            try:
                if self._attend is not None:
                    await self._attend(user, generation, at)
            except Conflict:
                continue
            except HostlerError as error:
                self._log.warning("terminal not noted", user=user, reason=str(error))
                continue
            if self._unnoted.get((user, generation)) == at:
                del self._unnoted[user, generation]

    def _changed(self, user: str) -> None:
        terminal = self._terminals.get(user)
        if terminal is not None:
            terminal.changed.set()

    async def _keys(self) -> tuple[asyncssh.SSHKey, str]:
        if self._path is None:
            raise Unavailable("terminal: this server has no key for logins to labs; set lab_key")
        if self._key is None:
            self._key = await asyncio.to_thread(terminal_key, self._path)
        return self._key
