"""The way between a process and the storage, on which anything can happen.

A request, once sent, is on its way whatever becomes of its sender: a sender that is cancelled, stopped or killed may
still have its request done, much later. That is what makes elections hard, so it is modelled.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from hostler.errors import HostlerError, Lagged, Unavailable, Uncertain
from hostler.ports.store import lease_id

from .processes import outside

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Sequence

    from hostler.drivers.store.memory import MemoryStore
    from hostler.ports.store import Comparison, Event, Lease, Operation, Watch

LATE = 0.3
"""Seconds after which a late request is done. Nobody waits for it any more by then."""


@dataclass
class Weather:
    """How often each fault happens to a request, from 0 to 1; the rest arrives and is answered soon."""

    unavailable: float = 0.0
    lost: float = 0.0
    never: float = 0.0
    slow: float = 0.0
    hang: float = 0.0
    deaf: float = 0.0
    """Hangs, and does not listen when it is cancelled."""
    lagged: float = 0.0
    slowest: float = 4.0

    def draw(self, rng: random.Random) -> str:
        chance = rng.random()
        for fate in ("unavailable", "lost", "never", "slow", "hang", "deaf"):
            often: float = getattr(self, fate)
            if chance < often:
                return fate
            chance -= often
        return "fine"


class Wire:
    """A store, as one process sees it. Entering and closing it leaves the store underneath alone."""

    def __init__(self, store: MemoryStore, rng: random.Random, weather: Weather) -> None:
        self._store, self._rng, self._weather = store, rng, weather
        self._healed = asyncio.Event()
        self._healed.set()
        self._told = asyncio.Event()
        self._told.set()
        self.dead = False
        self.step: Callable[[str], Awaitable[None]] | None = None
        """Awaited before each request is sent, and again when it is done but not answered yet."""
        self.fate: Callable[[bool], str | None] = lambda _: None
        """Told whether a request writes; what becomes of it, or None for what the weather draws."""
        self.busy_until = 0.0
        """When the last request that is on its way has arrived, and the last deaf one listens."""

    def cut(self) -> None:
        self._healed.clear()

    def heal(self) -> None:
        self._healed.set()

    def half_cut(self) -> None:
        """What is asked is answered; what is written fails, and watches are silent."""
        self._told.clear()

    def half_heal(self) -> None:
        self._told.set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    async def aclose(self) -> None:
        return

    # Verbs

    async def get(self, key: str, *, revision: int | None = None) -> Any:
        return await self._call(lambda: self._store.get(key, revision=revision), writes=False)

    async def range(self, prefix: str, **options: Any) -> Any:
        return await self._call(lambda: self._store.range(prefix, **options), writes=False)

    async def put(self, key: str, value: bytes, *, lease: Any = None) -> Any:
        return await self._call(lambda: self._store.put(key, value, lease=lease_id(lease)))

    async def delete(self, key: str) -> Any:
        return await self._call(lambda: self._store.delete(key))

    async def delete_prefix(self, prefix: str) -> Any:
        return await self._call(lambda: self._store.delete_prefix(prefix))

    async def compact(self, revision: int) -> None:
        await self._call(lambda: self._store.compact(revision))

    async def status(self) -> Any:
        return await self._call(self._store.status, writes=False)

    def lease_lateness(self, ttl: float) -> float:
        return self._store.lease_lateness(ttl)

    async def txn(
        self, when: Sequence[Comparison], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> Any:
        return await self._call(lambda: self._store.txn(when, then, otherwise))

    async def grant(self, ttl: float) -> WireLease:
        return WireLease(self, await self._call(lambda: self._store.grant(ttl)))

    def watch(self, prefix: str, *, start_revision: int | None = None) -> WireWatch:
        return WireWatch(self, self._store.watch(prefix, start_revision=start_revision), prefix)

    async def call(self, do: Callable[[], Awaitable[Any]]) -> Any:
        return await self._call(do)

    async def carried(self, event: Event, prefix: str) -> None:
        """Until the event has come through. Lagged: it has not."""
        await self._healed.wait()
        await self._told.wait()
        if self._rng.random() < self._weather.lagged:
            raise Lagged(prefix, event.kv.mod_revision)

    # Inside

    async def _call(self, do: Callable[[], Awaitable[Any]], *, writes: bool = True) -> Any:
        rng, loop = self._rng, asyncio.get_running_loop()
        if self.step is not None and not self.dead:
            await self.step("ask")
        there, back = rng.random() ** 4 * 0.1, rng.random() ** 4 * 0.1
        fate = self.fate(writes) or self._weather.draw(rng)
        lets = self._healed.is_set() and (self._told.is_set() or not writes)
        if self.dead or not lets or fate == "unavailable":
            await asyncio.sleep(there)
            raise Unavailable("wire: cut")
        if fate == "slow":
            delay = self._weather.slowest * rng.random() ** 2
            there, back = (there + delay, back) if rng.random() < 0.5 else (there, back + delay)
        if fate == "late":
            there += LATE
        arrives = not (fate == "never" or (fate in ("hang", "deaf") and rng.random() < 0.5))
        self.busy_until = max(self.busy_until, loop.time() + there)
        answer = loop.create_task(self._served(do, there, arrives=arrives), context=outside())
        answer.add_done_callback(_noticed)
        if fate == "late":
            raise Uncertain("wire: no answer")
        if fate == "hang":
            await asyncio.sleep(1e9)  # somebody must cancel it
        if fate == "deaf":
            await self._deaf(rng.random() * 2 * self._weather.slowest)
        result = await asyncio.shield(answer)
        if self.step is not None and not self.dead:
            await self.step("done")
        await asyncio.sleep(back)
        if fate in ("lost", "never", "hang", "deaf"):
            raise Uncertain("wire: no answer") if writes else Unavailable("wire: no answer")
        return result

    async def _served(self, do: Callable[[], Awaitable[Any]], delay: float, *, arrives: bool) -> Any:
        await asyncio.sleep(delay)
        return await do() if arrives else None

    async def _deaf(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        self.busy_until = max(self.busy_until, end)
        while loop.time() < end:
            try:
                await asyncio.sleep(end - loop.time())
            except asyncio.CancelledError:
                if self.dead:
                    raise


def _noticed(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, HostlerError):
        raise error


class WireLease:
    """A lease, as one process sees it."""

    def __init__(self, wire: Wire, lease: Lease) -> None:
        self._wire, self._lease = wire, lease
        self.id, self.ttl = lease.id, lease.ttl

    async def keep_alive(self) -> None:
        await self._wire.call(self._lease.keep_alive)

    async def revoke(self) -> None:
        await self._wire.call(self._lease.revoke)

    async def remaining(self) -> float:
        left: float = await self._wire.call(self._lease.remaining)
        return left


class WireWatch:
    """A watch, as one process sees it: silent while the wire is cut."""

    def __init__(self, wire: Wire, watch: Watch, prefix: str) -> None:
        self._wire, self._watch, self._prefix = wire, watch, prefix

    async def __aenter__(self) -> Self:
        await self._watch.__aenter__()
        return self

    async def __aexit__(self, *details: object) -> None:
        await self._watch.__aexit__(*details)  # type: ignore[arg-type]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        event = await self._watch.__anext__()
        await self._wire.carried(event, self._prefix)
        return event
