"""One user's terminal: waits for the lab, logs into its machine, and again when the connection is lost.

It lives for as long as somebody is there, and a grace time longer. Who comes back in time finds the same shell and what
it said meanwhile. Only one is there at a time: the newer takes over. It belongs to one lab, that is to one generation
of it: when that is gone, so is the terminal.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from hostler.entry.terminal import protocol
from hostler.entry.terminal.scrollback import Place, Scroll
from hostler.entry.terminal.ssh import shell_in
from hostler.errors import Forbidden, HostlerError, NotFound, Refused
from hostler.kit.backoff import Backoff
from hostler.kit.plural import counted
from hostler.model.lab import LabPhase
from hostler.ports.machines import Door

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from typing import Any

    import asyncssh

    from hostler.entry.terminal.lab_status import Outlook, Way
    from hostler.entry.terminal.ssh import Shell
    from hostler.kit.clock import Clock
    from hostler.model.lab import Lab
    from hostler.ports.peers import Peers

T = TypeVar("T")

LOOK_EVERY = 1.0
"""Seconds between two looks while the lab is waited for: others who wait move on, too."""
PATIENCE = 30.0
"""Seconds for which a machine may refuse the key: the first boot may still be putting it there."""
AGAIN = (0.5, 5.0)
"""Seconds, at first and at most, before the next try to log in."""
RATE = 2 * 1024 * 1024
"""Characters a second of one shell: more is of no use to people, and others need the server, too."""
BURST = 0.1
"""Seconds of that rate that may come at once."""
LASTED = 10.0
"""Seconds after which a shell that is lost counts as one that worked."""
SIZE = (80, 24)


class Ended(Exception):
    """The terminal is over: with this code, after it was said why."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class Screen:
    """Somebody who is at the terminal."""

    def __init__(self, terminal: Terminal, place: Place) -> None:
        self.terminal, self.place = terminal, place
        self.taken = asyncio.Event()
        """Somebody newer is there."""
        self.greeting = terminal.scroll.greeting(place)
        self.live = terminal.scroll.end
        """The position in what the shell says from which on it is said to this one."""

    async def read(self) -> str | None:
        """The next message; None: that was all, for the terminal is over. Asking again says that it was taken."""
        return await self.terminal.next(self)

    async def write(self, said: protocol.Said) -> None:
        """What this one types."""
        await self.terminal.take(self, said)


class Terminal:
    """`run` is its life. Everything else may be called meanwhile, and afterwards."""

    def __init__(
        self,
        user: str,
        generation: int | None,
        outlook: Outlook,
        peers: Peers,
        key: Callable[[], Awaitable[asyncssh.SSHKey]],
        *,
        clock: Clock,
        grace: float,
        moved: Callable[[Terminal], None] = lambda _: None,
    ) -> None:
        self.user, self.generation, self._moved = user, generation, moved
        """The generation is None while a lab stops after which another begins: it is that one's terminal."""
        self._outlook, self._peers, self._key, self._clock, self._grace = outlook, peers, key, clock, grace
        self.scroll = Scroll()
        self.code: int | None = None
        """With what it ended."""
        self.changed = asyncio.Event()
        """The lab, or its machine, is another now."""
        self._screen: Screen | None = None
        self._shown = Place()
        self._heard = outlook.last(user)
        """The number of the last news that are known here, or were there before."""
        self._size = SIZE
        self._shell: Shell | None = None
        self._said, self._read = asyncio.Event(), asyncio.Event()
        self._here, self._away = asyncio.Event(), asyncio.Event()
        self._away.set()

    @property
    def is_attended(self) -> bool:
        """Whether a browser is connected."""
        return self._screen is not None

    # Those who come and go

    def enter(self, *, everything: bool = False) -> Screen:
        """Somebody is there now, and nobody else; `everything`: wants to see all that is kept, not only what is new."""
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
        """Somebody has gone, unless somebody newer is there anyway."""
        if self._screen is screen:
            self._screen = None
            self._here.clear()
            self._away.set()
            self._read.set()
            self._moved(self)

    async def next(self, screen: Screen) -> str | None:
        """For `Screen.read`."""
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
        """For `Screen.write`. What is typed while there is no shell goes nowhere; a size is kept."""
        if self._screen is not screen:
            return
        if isinstance(said, protocol.Resize):
            self._size = (said.cols, said.rows)
            if self._shell is not None:
                self._shell.resize(*self._size)
        elif self._shell is not None:
            await self._shell.write(said.data)

    # Its life

    async def run(self) -> None:
        """Until it is over, for whatever reason."""
        try:
            await first(self._live(), self._deserted())
        except Ended as ended:
            self.end(ended.code, ended.message)
        finally:
            self.end(protocol.FAILED, protocol.error("terminal: it failed; open it again"))

    def end(self, code: int, message: str) -> None:
        """It is over, and says so; the first word counts."""
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
                    " trying again"
                )
            except NotFound as error:
                said = f"{error}; trying again"
            except Refused as error:
                raise Ended(protocol.FAILED, protocol.error(str(error))) from None
            except HostlerError as error:
                said = f"{error}; trying again"
            if said and said != told:
                self._note(protocol.info(said))
            told = said
            await self._clock.sleep(backoff.next())

    async def _deserted(self) -> None:
        while True:
            await self._away.wait()
            if await first(self._patience(), self._back()):
                raise Ended(protocol.NORMAL, protocol.info("nobody came back in time; the shell was ended"))

    async def _patience(self) -> bool:
        await self._clock.sleep(self._grace)
        return True

    async def _back(self) -> bool:
        await self._here.wait()
        return False

    async def _available(self) -> Way:
        """The way in, once the lab is available; until then tells how far it is."""
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
        """This terminal's; None: nobody can tell at present. Ended: it is gone.

        What was said to the user meanwhile is shown on the way: whoever looks at the lab was told of a change.
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
            raise self._gone()
        return lab

    def _gone(self) -> Ended:
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
            said = f"lab {lab.lab_id}: the way into its machine is not known yet"
        elif lab.phase is LabPhase.RUNNING:
            said = f"lab {lab.lab_id} does not answer at present"
        else:
            said = f"lab {lab.lab_id} starts"
        return protocol.provisioning(f"{said} ({lab.detail})" if lab.detail else said, lab.phase.value, position)

    async def _in_shell(self, way: Way) -> str:
        """Log in and be there until the connection is lost: what is said of that. Ended: the shell ended by itself."""
        channel = self._peers.channel(way.node, way.vm, Door.SSH)
        size = self._size
        async with shell_in(channel, way, await self._key(), size) as shell:
            self._shell = shell
            try:
                if self._size != size:
                    shell.resize(*self._size)
                self.scroll.start_shell()
                self._note(protocol.connected(shell.id), state=True)
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
        return "the connection to the lab was lost; trying again"

    async def _room(self) -> None:
        """Until who is there has read enough. Nobody there: what is too much is dropped at the old end."""
        while self._screen is not None and self.scroll.end - self._shown.position > self.scroll.ahead:
            self._read.clear()
            await self._read.wait()

    async def _other(self, way: Way) -> str:
        """Until the lab has another machine. Ended: it is gone."""
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
    """What the first of them returns or raises; the others are ended."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(iter(sorted(done, key=tasks.index))).result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
