"""One user's terminal: waits for the lab, logs in to its machine, and reconnects when the connection is lost.

A terminal lives while a browser is connected, and for a grace period after that. A user who returns in time gets the
same shell and the output since then. Only one browser is connected at a time: a newer one takes over. A terminal
belongs to one generation of one lab, and ends with it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from hostler.entry.terminal import protocol
from hostler.entry.terminal.machine import shell_in
from hostler.entry.terminal.protocol import ReadPosition, Scroll
from hostler.errors import Forbidden, HostlerError, NotFound, Refused
from hostler.kit.plural import counted
from hostler.kit.rate_limit import Backoff
from hostler.model.lab import LabPhase
from hostler.ports.machines import ChannelKind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from typing import Any

    import asyncssh

    from hostler.entry.terminal.machine import LabRoute, LabTerminalStatus, Shell
    from hostler.kit.clock import Clock
    from hostler.model.lab import Lab
    from hostler.ports.machines import Peers

T = TypeVar("T")

LOOK_EVERY = 1.0
"""Seconds between two checks while waiting for the lab; the position in the waiting list changes too."""
PATIENCE = 30.0
"""Seconds for which a machine may refuse the key: the first boot may still be installing it."""
AGAIN = (0.5, 5.0)
"""First and longest delay in seconds before the next login attempt."""
RATE = 2 * 1024 * 1024
"""Most characters per second of one shell: people cannot read faster, and other users need the server too."""
BURST = 0.1
"""Seconds of that rate that may be sent in one burst."""
LASTED = 10.0
"""Seconds after which a lost shell counts as one that worked."""
SIZE = (80, 24)


class Ended(Exception):
    """Raised when the terminal ends, with the close code and a message that gives the reason."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class Screen:
    """A browser that is connected to the terminal."""

    def __init__(self, terminal: Terminal, place: ReadPosition) -> None:
        self.terminal, self.place = terminal, place
        self.taken = asyncio.Event()
        """Set when a newer browser has taken over."""
        self.greeting = terminal.scroll.greeting(place)
        self.live = terminal.scroll.end
        """The position from which output is live for this browser; earlier output is replayed."""

    async def read(self) -> str | None:
        """Return the next message; None: the terminal has ended. Calling again acknowledges the previous message."""
        return await self.terminal.next(self)

    async def write(self, said: protocol.Said) -> None:
        """Pass on a message from the browser."""
        await self.terminal.take(self, said)


class TerminalEnv(NamedTuple):
    """What the terminals of a server share."""

    outlook: LabTerminalStatus
    peers: Peers
    key: Callable[[], Awaitable[asyncssh.SSHKey]]
    clock: Clock
    grace: float


class Terminal:
    """A terminal; `run` drives it. All other methods may be called while it runs, and afterwards."""

    def __init__(
        self,
        user: str,
        generation: int | None,
        env: TerminalEnv,
        *,
        moved: Callable[[Terminal], None] = lambda _: None,
    ) -> None:
        self.user, self.generation, self._moved = user, generation, moved
        """The generation is None while one lab stops and another starts after it: the terminal belongs to the other."""
        self._outlook, self._peers, self._key, self._clock, self._grace = env
        self.scroll = Scroll()
        self.code: int | None = None
        """The close code once the terminal has ended."""
        self.changed = asyncio.Event()
        """Set when the lab or its machine changed."""
        self._screen: Screen | None = None
        self._shown = ReadPosition()
        self._heard = env.outlook.last(user)
        """The number of the last event that was shown, or that existed at the start."""
        self._size = SIZE
        self._shell: Shell | None = None
        self._said, self._read = asyncio.Event(), asyncio.Event()
        self._here, self._away = asyncio.Event(), asyncio.Event()
        self._away.set()

    @property
    def is_attended(self) -> bool:
        return self._screen is not None

    # Browsers that connect and disconnect

    def enter(self, *, everything: bool = False) -> Screen:
        """Connect a browser in place of any other; `everything`: send all that is kept, not only what is new."""
        if self._screen is not None:
            self._screen.taken.set()
        self._shown = self.scroll.begin if everything else self._shown
        self._screen = Screen(self, self._shown)
        self._away.clear()
        self._here.set()
        self._read.set()
        self._moved(self)
        return self._screen

    def leave(self, screen: Screen) -> None:
        """Disconnect a browser, unless a newer one has taken over."""
        if self._screen is screen:
            self._screen = None
            self._here.clear()
            self._away.set()
            self._read.set()
            self._moved(self)

    async def next(self, screen: Screen) -> str | None:
        """Implement `Screen.read`."""
        if screen.greeting is not None:
            greeting, screen.greeting = screen.greeting, None
            return greeting
        if self._screen is screen:
            self._shown = screen.place
            self._read.set()
        while True:
            self._said.clear()
            found = self.scroll.after(screen.place, screen.live)
            if found is not None:
                message, screen.place = found
                return message
            if self.code is not None:
                return None
            await self._said.wait()

    async def take(self, screen: Screen, said: protocol.Said) -> None:
        """Implement `Screen.write`. Input without a shell is dropped; a window size is kept."""
        if self._screen is not screen:
            return
        if isinstance(said, protocol.Resize):
            self._size = (said.cols, said.rows)
            if self._shell is not None:
                self._shell.resize(*self._size)
        elif self._shell is not None:
            await self._shell.write(said.data)

    # Lifecycle

    async def run(self) -> None:
        """Run until the terminal ends."""
        try:
            await first(self._live(), self._deserted())
        except Ended as ended:
            self.end(ended.code, ended.message)
        finally:
            self.end(protocol.FAILED, protocol.error("terminal: internal error; open it again"))

    def end(self, code: int, message: str) -> None:
        """End the terminal with a message; only the first call has an effect."""
        if self.code is None:
            self.scroll.note(message)
            self.code = code
            self._said.set()

    async def _live(self) -> None:
        backoff, refused_at, told = Backoff(*AGAIN), None, ""
        while True:
            way = await self._available()
            began = self._clock.now()
            try:
                said = await first(self._in_shell(way), self._other(way))
                if self._clock.now() - began >= LASTED:
                    backoff.reset()
                refused_at = None
            except Forbidden as error:
                refused_at = began if refused_at is None else refused_at
                if self._clock.now() - refused_at >= PATIENCE:
                    raise Ended(protocol.FAILED, protocol.error(str(error))) from None
                said = (
                    "the machine refuses the terminal's key: it is still starting, or its authorized_keys was changed;"
                    " retrying"
                )
            except NotFound as error:
                said = f"{error}; retrying"
            except Refused as error:
                raise Ended(protocol.FAILED, protocol.error(str(error))) from None
            except HostlerError as error:
                said = f"{error}; retrying"
            if said and said != told:
                self._note(protocol.info(said))
            told = said
            await self._clock.sleep(backoff.next())

    async def _deserted(self) -> None:
        while True:
            await self._away.wait()
            if await first(self._patience(), self._back()):
                raise Ended(protocol.NORMAL, protocol.info("the user did not reconnect in time; the shell was ended"))

    async def _patience(self) -> bool:
        await self._clock.sleep(self._grace)
        return True

    async def _back(self) -> bool:
        await self._here.wait()
        return False

    async def _available(self) -> LabRoute:
        """Wait until the lab is available, and report progress. Return how to log in."""
        told = ""
        while True:
            self.changed.clear()
            lab = self._lab()
            way = self._outlook.way(self.user, lab) if lab is not None and lab.available else None
            if way is not None and lab is not None and lab.phase is not LabPhase.STOPPING:
                return way
            message = self._how_far(lab)
            if message != told:
                self._note(message, state=True)
            told = message
            await first(self.changed.wait(), self._clock.sleep(LOOK_EVERY))

    def _lab(self) -> Lab | None:
        """Return the lab of this terminal; None: not known at present. Ended: the lab is gone.

        This also shows new messages to the user, because every change of the lab leads here.
        """
        for news in self._outlook.messages(self.user, self._heard):
            self._note(protocol.message(news.reason))
            self._heard = news.number
        lab = self._outlook.lab(self.user)
        if lab is None and not self._outlook.readable(self.user):
            return None
        if self.generation is None and lab is not None:
            if lab.phase is LabPhase.STOPPING and lab.again is not None:
                return lab
            self.generation = lab.generation
        if lab is None or lab.generation != self.generation or lab.phase is LabPhase.STOPPING:
            raise self._end_of_lab()
        return lab

    def _end_of_lab(self) -> Ended:
        why = self._outlook.ending(self.user, self.generation or 0)
        return Ended(protocol.NO_LAB, protocol.info(f"the lab: {why}; the terminal ends with it"))

    def _how_far(self, lab: Lab | None) -> str:
        if lab is None:
            return protocol.provisioning("the lab: its record cannot be read at present", "unknown")
        position = None
        if lab.phase is LabPhase.STOPPING:
            said = f"lab {lab.lab_id} stops; lab {lab.again} starts once it is gone"
        elif lab.phase is LabPhase.WAITING:
            position = self._outlook.position(self.user)
            before = "" if position is None else f"; {counted(position - 1, 'is', 'are')} before it"
            said = f"lab {lab.lab_id} waits for room{before}"
        elif lab.available:
            said = f"lab {lab.lab_id}: the SSH access of its machine is not known yet"
        elif lab.phase is LabPhase.RUNNING:
            said = f"lab {lab.lab_id} does not answer at present"
        else:
            said = f"lab {lab.lab_id} starts"
        return protocol.provisioning(f"{said} ({lab.detail})" if lab.detail else said, lab.phase.value, position)

    async def _in_shell(self, way: LabRoute) -> str:
        """Log in and copy output until the connection is lost. Return a message about it. Ended: the shell exited."""
        channel = self._peers.channel(way.node, way.vm, ChannelKind.SSH)
        size = self._size
        async with shell_in(channel, way, await self._key(), size) as shell:
            self._shell = shell
            try:
                if self._size != size:
                    shell.resize(*self._size)
                self.scroll.start_shell()
                self._note(protocol.connected_message(shell.id), state=True)
                due = 0.0
                while text := await shell.read():
                    self.scroll.say(text)
                    self._said.set()
                    await self._room()
                    now = self._clock.now()
                    due = max(due, now) + len(text) / RATE
                    if due - now > BURST:
                        await self._clock.sleep(due - now)
            finally:
                self._shell = None
            status = await shell.exit_status()
        if status is not None:
            raise Ended(protocol.NORMAL, protocol.info(f"the shell has ended (exit status {status})"))
        return "the connection to the lab was lost; retrying"

    async def _room(self) -> None:
        """Wait until the browser has read enough. Without a browser, the oldest output is dropped instead."""
        while self._screen is not None and self.scroll.end - self._shown.position > self.scroll.ahead:
            self._read.clear()
            await self._read.wait()

    async def _other(self, way: LabRoute) -> str:
        """Wait until the lab has another machine. Ended: the lab is gone."""
        while True:
            self.changed.clear()
            lab = self._lab()
            if lab is not None and lab.vm != way.vm:
                return "the lab has another machine now; logging in there"
            await self.changed.wait()

    def _note(self, message: str, *, state: bool = False) -> None:
        self.scroll.note(message, state=state)
        self._said.set()


async def first(*works: Coroutine[Any, Any, T]) -> T:
    """Return the result of the first coroutine to finish, or raise its error; cancel the others."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(iter(sorted(done, key=tasks.index))).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
