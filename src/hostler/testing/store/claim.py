"""What a claim is, what it works with, and how all of them are run."""

from __future__ import annotations

import asyncio
import importlib
import secrets
from typing import TYPE_CHECKING

import msgspec

from hostler.testing.claim import check_all, on_time, trying
from hostler.testing.claim import refused as refused  # noqa: PLC0414 - one of the words that claims are written in

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from hostler.ports.store import Event, KeyValue, Page, Store, Watch
    from hostler.testing.claim import OnTime

WITHIN = 30.0
"""Seconds in which whatever a claim waits for must have happened; leases are timed by themselves."""
TTL = 1.0
"""Seconds asked of a lease that a claim waits for."""

_CHAPTERS = (
    "revisions",
    "transactions",
    "races",
    "ranges",
    "compaction",
    "leases",
    "watches",
    "lagging",
    "validation",
    "lifetime",
)


class Claim(msgspec.Struct, frozen=True):
    """One thing that is true of every store. `str(claim)` is the claim in words.

    `waits`: it mostly sleeps (a lease must run out) and asks for no exact revision, so it may run beside others that
    wait. `reopens`: it is about data that outlives the object, and made only of persistent stores.
    """

    name: str
    body: Callable[[Trial], Awaitable[None]]
    waits: bool = False
    reopens: bool = False

    def __str__(self) -> str:
        return self.name

    async def check(
        self, open_store: Callable[[], Store], *, persistent: bool = True, on_time: OnTime = on_time
    ) -> None:
        """Try the claim; AssertionError or what the store raised, with a note that names it."""
        async with trying(self.name, within=4 * WITHIN):
            await self._try(Trial(open_store, persistent=persistent, on_time=on_time))

    async def _try(self, trial: Trial) -> None:
        try:
            await trial.open()
            await self.body(trial)
        except BaseException:
            await trial.aclose()
            raise
        await trial.aclose(tidy=True)


class Trial:
    """What a claim works with: an open store, and a part of it (`prefix`) that nobody else knows."""

    store: Store
    """Open from the start."""

    def __init__(self, open_store: Callable[[], Store], *, persistent: bool, on_time: OnTime = on_time) -> None:
        self._open_store, self.on_time = open_store, on_time
        self._opened: list[Store] = []
        self.persistent = persistent
        self.prefix = f"/check-store/{secrets.token_hex(6)}/"

    def key(self, name: str) -> str:
        """A key of this trial."""
        return self.prefix + name

    async def open(self) -> Store:
        """Open the trial's store, again if need be."""
        self.store = await self._enter(self._open_store())
        return self.store

    async def second(self) -> Store:
        """Another client on the same data; the same one if the data lives in one object."""
        return await self._enter(self._open_store()) if self.persistent else self.store

    async def reopen(self) -> Store:
        """Close every client, then open the store again. For claims about data that persists."""
        await self.aclose()
        return await self.open()

    def fresh(self) -> Store:
        """A store that was not opened yet; on the same data if that persists."""
        return self._open_store()

    async def aclose(self, *, tidy: bool = False) -> None:
        """Close every client; `tidy` deletes what the trial wrote."""
        if tidy and self.persistent:
            await (await self.open()).delete_prefix(self.prefix)
        while self._opened:
            await self._opened.pop().aclose()

    async def revision(self) -> int:
        """The store's revision now."""
        return (await self.store.range(self.prefix, limit=1)).revision

    async def all(self, store: Store | None = None, *, under: str = "", revision: int | None = None) -> Page:
        """Everything of this trial, or under a part of it."""
        return await (store or self.store).range(self.prefix + under, revision=revision)

    async def state(self, store: Store | None = None, *, under: str = "") -> dict[str, bytes]:
        """Keys and values of this trial."""
        return values((await self.all(store, under=under)).items)

    async def got(self, key: str) -> KeyValue:
        """A key that must be there."""
        kv = await self.store.get(key)
        assert kv is not None, f"{key!r} is absent"
        return kv

    async def _enter(self, store: Store) -> Store:
        await store.__aenter__()
        self._opened.append(store)
        return store


def claim(
    *, waits: bool = False, reopens: bool = False
) -> Callable[[Callable[[Trial], Awaitable[None]]], Callable[[Trial], Awaitable[None]]]:
    """Make a claim of an async function: its name is the claim in words."""

    def register(body: Callable[[Trial], Awaitable[None]]) -> Callable[[Trial], Awaitable[None]]:
        _CLAIMS.append(Claim(getattr(body, "__name__", "?"), body, waits, reopens))
        return body

    return register


_CLAIMS: list[Claim] = []


def store_claims(*, persistent: bool = True) -> Sequence[Claim]:
    """Every claim that is made of a store; `persistent=False` leaves out those about opening it again."""
    for chapter in _CHAPTERS:
        importlib.import_module(f"hostler.testing.store.{chapter}")
    return tuple(claim for claim in _CLAIMS if persistent or not claim.reopens)


async def check_store(
    open_store: Callable[[], Store],
    *,
    persistent: bool = True,
    only: Collection[str] | None = None,
    on_time: OnTime = on_time,
) -> None:
    """Check that a driver does what the store port promises; raises a group with every claim that does not hold.

    `open_store()` returns a store that is not open yet. Each call gives a new client of the same data, and several may
    be open at once; a store whose data lives in the object itself says `persistent=False` and is then tried with one
    client at a time, and claims about re-opening it are not made. What the store holds already is left alone, but its
    history may be compacted; nobody else may write to it meanwhile, for exact revisions are claimed. `only` names the
    claims to check (see `store_claims`). `on_time` judges how long things take.

    It takes about half a minute: leases are waited for by the time of the event loop.
    """
    await check_all(
        "store",
        store_claims(persistent=persistent),
        lambda claim: claim.check(open_store, persistent=persistent, on_time=on_time),
        only,
    )


# Words that claims are written in.


def values(items: Sequence[KeyValue]) -> dict[str, bytes]:
    """Keys and their values, in the order given."""
    return {kv.key: kv.value for kv in items}


async def take(watch: Watch, count: int) -> list[Event]:
    """The next `count` events; they must come in time."""
    events: list[Event] = []
    try:
        async with asyncio.timeout(WITHIN):
            while len(events) < count:
                events.append(await anext(watch))
    except TimeoutError:
        raise AssertionError(f"{len(events)} of {count} events came within {WITHIN:g} s") from None
    return events


async def take_until(watch: Watch, key: str) -> list[Event]:
    """Every event before the next change of `key`: the way to see that nothing else came."""
    events: list[Event] = []
    while True:
        (event,) = await take(watch, 1)
        if event.kv.key == key:
            return events
        events.append(event)


def follow(state: dict[str, bytes], events: Sequence[Event]) -> dict[str, bytes]:
    """`state` after `events`, in place."""
    for event in events:
        if event.type == "put":
            state[event.kv.key] = event.kv.value
        else:
            del state[event.kv.key]
    return state
