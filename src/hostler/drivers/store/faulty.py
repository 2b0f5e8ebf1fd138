"""A store that injects faults, for tests and simulation.

    store = FaultyStore(MemoryStore(clock=clock), random.Random(7), clock=clock)
    store.faults.lost = 0.05                               # one write in twenty is done, but its answer is lost
    store.script("put", "unavailable", prefix="/vms/", nth=3)   # and the third put of a VM fails for certain
    async with store:
        ...
        store.down()                                       # from here on nothing can be reached
        ...
        store.up()

The faults depend on the seed and the order of the calls alone: every call, and every event of a watch, draws the same
number of random numbers, whatever the rates are.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, TypeAlias, TypeVar

from hostler.errors import Compacted, Invalid, Lagged, Missed, Unavailable, Uncertain
from hostler.kit.clock import SystemClock
from hostler.kit.tasks import Closing
from hostler.ports.store import lease_id, watching

if TYPE_CHECKING:
    import random
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from types import TracebackType

    from hostler.kit.clock import Clock
    from hostler.ports.store import Comparison, Event, KeyValue, Lease, Operation, Page, Status, Store, TxnResult, Watch

R = TypeVar("R")

Verb: TypeAlias = Literal[
    "get", "range", "status", "remaining", "put", "delete", "delete_prefix", "txn", "compact", "grant", "keep_alive",
    "revoke", "event",
]  # fmt: skip
"""The verbs of a store and its leases; `event` is the delivery of a transaction, by its first event, to a watch."""
Kind: TypeAlias = Literal["unavailable", "lost", "never", "slow", "lagged", "compacted"]

_READS = ("get", "range", "status", "remaining")
_KINDS: dict[str, tuple[Kind, ...]] = {
    "read": ("unavailable", "slow"),
    "write": ("unavailable", "lost", "never", "slow"),
    "event": ("lagged", "compacted", "slow"),
}


@dataclass
class Faults:
    """How often each fault happens, from 0 (never) to 1 (always). All may be changed at any time."""

    unavailable: float = 0.0
    """Unavailable, and nothing was done."""
    lost: float = 0.0
    """A write is done, and then Uncertain is raised."""
    never: float = 0.0
    """A write is not done, and Uncertain is raised."""
    slow: float = 0.0
    """A call takes up to `slowest` seconds longer, before or after it is done. An event arrives that much later."""
    lagged: float = 0.0
    """A watch ends with Lagged instead of delivering an event."""
    compacted: float = 0.0
    """A watch ends with Compacted instead of delivering an event."""
    slowest: float = 1.0


@dataclass
class _Script:
    verb: Verb
    kind: Kind
    prefix: str
    skip: int
    times: int


class FaultyStore(Closing):
    """Wraps a store and has all its verbs. Injected faults raise only what the port allows."""

    def __init__(
        self, store: Store, rng: random.Random, *, clock: Clock | None = None, faults: Faults | None = None
    ) -> None:
        self._store, self._rng, self._clock = store, rng, clock or SystemClock()
        self.faults = faults or Faults()
        self._scripts: list[_Script] = []
        self._back_up: asyncio.Event | None = None

    def script(self, verb: Verb, kind: Kind, *, prefix: str = "", nth: int = 1, times: int = 1) -> None:
        """Inject a fault into the `nth` call of `verb` from now, and into `times` calls in all.

        With `prefix`, only calls that name a key or prefix below it count; a transaction counts if one of its
        operations does.
        """
        allowed = _KINDS["event" if verb == "event" else "read" if verb in _READS else "write"]
        if kind not in allowed:
            raise Invalid(f"script: {verb} cannot be {kind}; it can be {', '.join(allowed)}")
        if nth < 1 or times < 1:
            raise Invalid(f"script: nth {nth} and times {times} must be at least 1")
        self._scripts.append(_Script(verb, kind, prefix, nth - 1, times))

    def down(self) -> None:
        """Be unreachable until `up`: every verb raises Unavailable, watches deliver nothing."""
        if self._back_up is None:
            self._back_up = asyncio.Event()

    def up(self) -> None:
        """Be reachable again; watches continue where they were."""
        if self._back_up is not None:
            self._back_up.set()
            self._back_up = None

    async def __aenter__(self) -> Self:
        await self._store.__aenter__()
        return self

    async def aclose(self) -> None:
        self.up()
        await self._store.aclose()

    # The verbs

    async def get(self, key: str, *, revision: int | None = None) -> KeyValue | None:
        return await self._call("get", (key,), lambda: self._store.get(key, revision=revision))

    async def range(
        self,
        prefix: str,
        *,
        after: str | None = None,
        limit: int | None = None,
        revision: int | None = None,
        keys_only: bool = False,
    ) -> Page:
        return await self._call(
            "range",
            (prefix,),
            lambda: self._store.range(prefix, after=after, limit=limit, revision=revision, keys_only=keys_only),
        )

    async def put(self, key: str, value: bytes, *, lease: int | Lease | None = None) -> int:
        return await self._call("put", (key,), lambda: self._store.put(key, value, lease=lease_id(lease)))

    async def delete(self, key: str) -> bool:
        return await self._call("delete", (key,), lambda: self._store.delete(key))

    async def delete_prefix(self, prefix: str) -> int:
        return await self._call("delete_prefix", (prefix,), lambda: self._store.delete_prefix(prefix))

    async def txn(
        self, when: Sequence[Comparison], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> TxnResult:
        names = [str(getattr(part, "key", getattr(part, "prefix", ""))) for part in (*then, *otherwise)]
        return await self._call("txn", names, lambda: self._store.txn(when, then, otherwise))

    async def compact(self, revision: int) -> None:
        await self._call("compact", (), lambda: self._store.compact(revision))

    async def status(self) -> Status:
        return await self._call("status", (), self._store.status)

    async def grant(self, ttl: float) -> FaultyLease:
        return FaultyLease(self, await self._call("grant", (), lambda: self._store.grant(ttl)))

    def lease_lateness(self, ttl: float) -> float:
        return self._store.lease_lateness(ttl)

    def watch(self, prefix: str, *, start_revision: int | None = None, previous: bool = True) -> FaultyWatch:
        watch = watching(self._store, prefix, start_revision=start_revision, previous=previous)
        return FaultyWatch(self, watch, prefix)

    # For leases and watches

    async def call(self, verb: Verb, do: Callable[[], Awaitable[R]]) -> R:
        """Call a verb of a lease."""
        return await self._call(verb, (), do)

    async def event_fault(self, event: Event, prefix: str) -> Missed | None:
        """Apply a fault to an event before it is delivered: it is delayed, or the watch ends."""
        while self._back_up is not None:
            await self._back_up.wait()
        kind, share, _ = self._draw("event", (event.kv.key,))
        if kind == "lagged":
            return Lagged(prefix, event.kv.mod_revision)
        if kind == "compacted":
            return Compacted(event.kv.mod_revision)
        if kind == "slow":
            await self._clock.sleep(share * self.faults.slowest)
        return None

    # Internal

    async def _call(self, verb: Verb, names: Sequence[str], do: Callable[[], Awaitable[R]]) -> R:
        kind, share, early = self._draw(verb, names)
        delay = share * self.faults.slowest if kind == "slow" else 0.0
        if delay and early:
            await self._clock.sleep(delay)
        if self._back_up is not None or kind == "unavailable":
            raise Unavailable(f"{verb}: the store is out of reach; nothing was written, try again")
        if kind == "never":
            raise Uncertain(f"{verb}: the answer was lost; it may have been written, read before you act")
        result = await do()
        if kind == "lost":
            raise Uncertain(f"{verb}: the answer was lost; it may have been written, read before you act")
        if delay and not early:
            await self._clock.sleep(delay)
        return result

    def _draw(self, verb: Verb, names: Sequence[str]) -> tuple[Kind | None, float, bool]:
        """Return the fault of this call, its share of the maximum delay, and whether the delay comes first."""
        chance, share, early = self._rng.random(), self._rng.random(), self._rng.random() < 0.5
        scripted = self._next_scripted(verb, names)
        if scripted is not None:
            return scripted, share, early
        for kind in _KINDS["event" if verb == "event" else "read" if verb in _READS else "write"]:
            often: float = getattr(self.faults, kind)
            if chance < often:
                return kind, share, early
            chance -= often
        return None, share, early

    def _next_scripted(self, verb: Verb, names: Sequence[str]) -> Kind | None:
        found: Kind | None = None
        for script in list(self._scripts):
            if script.verb != verb or not (not script.prefix or any(n.startswith(script.prefix) for n in names)):
                continue
            if script.skip:
                script.skip -= 1
            elif found is None:
                found = script.kind
                script.times -= 1
                if not script.times:
                    self._scripts.remove(script)
        return found


class FaultyLease:
    """A lease of a FaultyStore."""

    def __init__(self, store: FaultyStore, lease: Lease) -> None:
        self._store, self._lease = store, lease

    @property
    def id(self) -> int:
        return self._lease.id

    @property
    def ttl(self) -> float:
        return self._lease.ttl

    async def keep_alive(self) -> None:
        await self._store.call("keep_alive", self._lease.keep_alive)

    async def revoke(self) -> None:
        await self._store.call("revoke", self._lease.revoke)

    async def remaining(self) -> float:
        return await self._store.call("remaining", self._lease.remaining)


class FaultyWatch:
    """A watch on a FaultyStore. It ends between transactions only, so that watching again repeats nothing."""

    def __init__(self, store: FaultyStore, watch: Watch, prefix: str) -> None:
        self._store, self._watch, self._prefix = store, watch, prefix
        self._delivered = 0
        self._held: Event | None = None
        self._ended: Missed | None = None

    async def __aenter__(self) -> Self:
        await self._watch.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._watch.__aexit__(kind, error, traceback)

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        if self._ended is not None:
            raise self._ended
        # Kept until it is delivered: a reader that is cancelled while the event is delayed must get it next time.
        event = self._held = self._held or await self._watch.__anext__()
        if event.kv.mod_revision != self._delivered:
            self._ended = await self._store.event_fault(event, self._prefix)
            if self._ended is not None:
                raise self._ended
            self._delivered = event.kv.mod_revision
        self._held = None
        return event
