"""A ttl storage with injectable faults."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, TypeVar

from hostler.errors import Unavailable, Uncertain
from hostler.kit.clock import SystemClock
from hostler.kit.tasks import Closing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hostler.kit.clock import Clock
    from hostler.ports.ttl import TtlStorage

T = TypeVar("T")

Mood: TypeAlias = Literal["fine", "unavailable", "lost", "never", "hang", "deaf"]


OPTIONAL = ("wait_change", "store", "guard", "time_left")
"""Attributes of the optional protocols of a ttl storage: Watchable, StoreBacked, TellsLife."""


class BreakableTtlStorage(Closing):
    """Wraps a ttl storage; its other attributes (`wait_change`, `guard`, `store`) are available, too.

    `mood` is the fault of each call from now on, `moods` those of the next calls:

    - `unavailable`: nothing is executed, and Unavailable is raised
    - `lost`: the call is executed, and Uncertain is raised (reads: Unavailable)
    - `never`: the call is not executed, and Uncertain is raised (reads: Unavailable)
    - `hang`: the call never returns
    - `deaf`: the call never returns, not even when it is cancelled, until `hear`
    """

    def __init__(self, storage: TtlStorage, *, clock: Clock | None = None) -> None:
        self._storage, self._clock = storage, clock or SystemClock()
        # Since Python 3.12 `isinstance(…, Watchable)` does not ask `__getattr__`: without these a replica would poll.
        for name in OPTIONAL:
            if hasattr(storage, name):
                setattr(self, name, getattr(storage, name))
        self.mood: Mood = "fine"
        self.moods: deque[Mood] = deque()
        self.calls = 0
        self.done_at = self.told_at = -math.inf
        """When the last executed write began, and the last executed write that was answered, by the clock."""
        self._told: list[tuple[float, float]] = []
        self._listening = asyncio.Event()
        self._begun = asyncio.Event()

    def after(self, calls: int, mood: Mood) -> None:
        """Let that many calls from now succeed, and apply this fault to the next one."""
        self.moods.extend(["fine"] * calls)
        self.moods.append(mood)

    def told_by(self, instant: float) -> float:
        """Return when the last write began that was answered as done by that instant, by the clock."""
        return max((began for began, told in self._told if told <= instant), default=-math.inf)

    def hear(self) -> None:
        """Return to normal operation; deaf calls end."""
        self.mood = "fine"
        self.moods.clear()
        self._listening.set()

    async def begun(self) -> None:
        """Wait until the next call has begun."""
        self._begun.clear()
        await self._begun.wait()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    async def __aenter__(self) -> Self:
        await self._storage.__aenter__()
        return self

    async def aclose(self) -> None:
        await self._storage.aclose()

    def lateness(self, ttl: float) -> float:
        return self._storage.lateness(ttl)

    async def insert_if_not_exist(self, key: str, value: str, *, ttl: float) -> bool:
        return await self._call(lambda: self._storage.insert_if_not_exist(key, value, ttl=ttl))

    async def compare_and_swap(self, key: str, old: str, new: str, *, ttl: float) -> bool:
        return await self._call(lambda: self._storage.compare_and_swap(key, old, new, ttl=ttl))

    async def compare_and_delete(self, key: str, old: str) -> bool:
        return await self._call(lambda: self._storage.compare_and_delete(key, old))

    async def get(self, key: str) -> str | None:
        return await self._call(lambda: self._storage.get(key), writes=False)

    # Internals

    async def _call(self, do: Callable[[], Awaitable[T]], *, writes: bool = True) -> T:
        mood = self.moods.popleft() if self.moods else self.mood
        self.calls += 1
        self._begun.set()
        if mood in ("fine", "lost"):
            began = self._clock.now()
            result = await do()
            if writes and result:
                self.done_at = began
            if mood == "fine":
                if writes and result:
                    self.told_at = began
                    self._told.append((began, self._clock.now()))
                return result
        elif mood == "hang":
            await asyncio.Event().wait()
        elif mood == "deaf":
            await self._deaf()
        if writes and mood != "unavailable":
            raise Uncertain("storage: the answer was lost; it may have been done, read before you act")
        raise Unavailable("storage: out of reach; nothing was done, try again")

    async def _deaf(self) -> None:
        while not self._listening.is_set():
            try:
                await self._listening.wait()
            except asyncio.CancelledError:
                continue
