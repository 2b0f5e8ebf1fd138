"""Something that is waited for: looked at again and again, when an event says so and by the clock."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from hostler.errors import HostlerError, Invalid, NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from hostler.client.events import Events
    from hostler.model.api import EventView

LOOK_EVERY = 1.0
"""Seconds between two looks while there are no events to wait for."""
LOOK_ANYWAY = 10.0
"""The same while there are: some things, as the place in a queue, move without an event."""
POLL_EVERY = 0.5
"""Seconds between two looks at what is made of many parts, whose events would be too many."""


class Shown(Protocol):
    """What machines and labs have in common."""

    @property
    def phase(self) -> object: ...

    @property
    def detail(self) -> str: ...


V = TypeVar("V", bound=Shown)


class Look(Generic[V]):
    """`on_change` sees it as it was found first, and after each change."""

    def __init__(self, on_change: Callable[[V], None] | None) -> None:
        self._on_change = on_change
        self._last: V | None = None
        self._events: Events | None = None
        self._changed = asyncio.Event()

    async def _asked(self, ask: Callable[[], Awaitable[V]]) -> V:
        """As it is. An outage is waited for: it says nothing of what is looked at."""
        self._changed.clear()
        while True:
            try:
                view = await ask()
                break
            except Unavailable:
                await asyncio.sleep(LOOK_EVERY)
        if view != self._last:
            self._last = view
            if self._on_change is not None:
                self._on_change(view)
        return view

    @asynccontextmanager
    async def following(self, events: Events, subject: str, within: float, advice: str) -> AsyncIterator[None]:
        """Notice changes meanwhile. Unavailable: `within` seconds were not enough."""
        self._events = events
        task = asyncio.create_task(self._follow(events), name=f"hostler client: waiting for {subject}")
        try:
            async with asyncio.timeout(within):
                yield
        except TimeoutError:
            raise Unavailable(f"{subject}: {self._state()} after {within:g} s; {advice}") from None
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _follow(self, events: Events) -> None:
        """Without events there is the clock."""
        with suppress(HostlerError):
            async with events:
                async for event in events:
                    if self._last is None or self._is_about_it(event):
                        self._changed.set()

    def _is_about_it(self, event: EventView) -> bool:  # noqa: ARG002 - for those who are told of more
        return True

    async def changed(self) -> None:
        """Until something changed, or it is time to look anyway."""
        told = self._events is not None and self._events.connected.is_set()
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_ANYWAY if told else LOOK_EVERY):
                await self._changed.wait()

    def _state(self) -> str:
        """In words."""
        if self._last is None:
            return "could not be asked for"
        detail = f" ({self._last.detail})" if self._last.detail else ""
        return f"still {self._last.phase}{detail}"


async def polled(  # noqa: PLR0917 - what, how it is asked for, and when that is enough
    subject: str,
    ask: Callable[[], Awaitable[V]],
    is_done: Callable[[V], bool],
    gone: bool,
    within: float,
    on_change: Callable[[V], None] | None,
) -> V | None:
    """Until it `is_done`, or until it is `gone` (then None).

    `on_change` sees it as it was found first, and after each change. NotFound: it went while something else was waited
    for. Unavailable: `within` seconds were not enough.
    """
    last: V | None = None
    try:
        async with asyncio.timeout(within):
            while True:
                with suppress(Unavailable):  # an outage says nothing of it
                    try:
                        found = await ask()
                    except NotFound:
                        if gone:
                            return None
                        raise
                    if found != last:
                        last = found
                        if on_change is not None:
                            on_change(found)
                    if not gone and is_done(found):
                        return found
                await asyncio.sleep(POLL_EVERY)
    except TimeoutError:
        how = "could not be asked for" if last is None else f"still {getattr(last.phase, 'value', last.phase)}"
        detail = f" ({last.detail})" if last is not None and last.detail else ""
        raise Unavailable(f"{subject}: {how}{detail} after {within:g} s; wait longer") from None


def check_wait(*, settled: bool, gone: bool) -> None:
    """Invalid: it was not said what is waited for."""
    if settled == gone:
        raise Invalid("wait: for what? give settled or gone")
