"""Something that is waited for: looked at again and again, when an event says so and by the clock."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from hostler.errors import HostlerError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hostler.client.events import Events
    from hostler.model.api import EventView

LOOK_EVERY = 1.0
"""Seconds between two looks while there are no events to wait for."""


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

    async def follow(self, events: Events) -> None:
        """Notice changes. Without events there is the clock."""
        with suppress(HostlerError):
            async with events:
                async for event in events:
                    if self._last is None or self._is_about_it(event):
                        self._changed.set()

    def _is_about_it(self, event: EventView) -> bool:  # noqa: ARG002 - for those who are told of more
        return True

    async def changed(self, within: float | None) -> None:
        """Until something changed, or so long; None: as long as it may take where no event would tell."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_EVERY if within is None else within):
                await self._changed.wait()

    def state(self) -> str:
        """In words."""
        if self._last is None:
            return "could not be asked for"
        detail = f" ({self._last.detail})" if self._last.detail else ""
        return f"still {self._last.phase}{detail}"
