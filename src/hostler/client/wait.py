"""Waiting for an object: read it again when an event arrives, and periodically."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from hostler.errors import HostlerError, Invalid, NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from hostler.client.events import Events
    from hostler.model.control_api import EventView

LOOK_EVERY = 1.0
"""Seconds between two reads while the event stream is not connected."""
LOOK_ANYWAY = 10.0
"""Seconds between two reads while it is connected: some fields, like a queue position, change without an event."""
POLL_EVERY = 0.5
"""Seconds between two reads of an object with many parts, which would cause too many events."""


class Shown(Protocol):
    """What machines and labs have in common."""

    @property
    def phase(self) -> object: ...

    @property
    def detail(self) -> str: ...


V = TypeVar("V", bound=Shown)


class Wait(Generic[V]):
    """Observes an object. `on_change` gets the first state, and the state after each change."""

    def __init__(self, on_change: Callable[[V], None] | None) -> None:
        self._on_change = on_change
        self._last: V | None = None
        self._events: Events | None = None
        self._changed = asyncio.Event()

    async def _read_state(self, ask: Callable[[], Awaitable[V]]) -> V:
        """Return the current state. Wait during an outage, because it says nothing about the object."""
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
        """Follow the events inside this block. Unavailable: it took longer than `within` seconds."""
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
        """Follow the events until they fail; without them the object is read periodically."""
        with suppress(HostlerError):
            async with events:
                async for event in events:
                    if self._last is None or self._is_about_it(event):
                        self._changed.set()

    def _is_about_it(self, event: EventView) -> bool:  # noqa: ARG002 - for subclasses that get events of other objects
        return True

    async def changed(self) -> None:
        """Wait until something changed, or until the next periodic read."""
        told = self._events is not None and self._events.connected.is_set()
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_ANYWAY if told else LOOK_EVERY):
                await self._changed.wait()

    def _state(self) -> str:
        """Describe the last known state."""
        if self._last is None:
            return "could not be read"
        detail = f" ({self._last.detail})" if self._last.detail else ""
        return f"still {self._last.phase}{detail}"


async def poll(  # noqa: PLR0917 - what, how to read it, and when it is done
    subject: str,
    ask: Callable[[], Awaitable[V]],
    is_done: Callable[[V], bool],
    gone: bool,
    within: float,
    on_change: Callable[[V], None] | None,
) -> V | None:
    """Poll until it `is_done`, or until it is `gone` (returns None).

    `on_change` gets the first state, and the state after each change. NotFound: it was deleted while waiting for
    something else. Unavailable: not reached within `within` seconds.
    """
    last: V | None = None
    try:
        async with asyncio.timeout(within):
            while True:
                with suppress(Unavailable):  # an outage says nothing about the object
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
        how = "could not be read" if last is None else f"still {getattr(last.phase, 'value', last.phase)}"
        detail = f" ({last.detail})" if last is not None and last.detail else ""
        raise Unavailable(f"{subject}: {how}{detail} after {within:g} s; wait longer") from None


def check_wait(*, settled: bool, gone: bool) -> None:
    """Invalid: not exactly one of the conditions is given."""
    if settled == gone:
        raise Invalid("wait: give settled or gone")
