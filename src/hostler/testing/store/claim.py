"""Definition of a claim, its environment, and the runner of all claims."""

from __future__ import annotations

import asyncio
import importlib
import secrets
from typing import TYPE_CHECKING

import msgspec

from hostler.testing.claim import check_all, on_time, trying
from hostler.testing.claim import refused as refused  # noqa: PLC0414 - re-exported for claims

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from hostler.ports.store import Event, KeyValue, Page, Store, Watch
    from hostler.testing.claim import OnTime

WITHIN = 30.0
"""Seconds within which everything that a claim waits for must happen; leases have their own limits."""
TTL = 1.0
"""Requested ttl, in seconds, of a lease that a claim waits for."""

_CHAPTERS = ("revisions", "transactions", "ranges", "leases", "watches", "validation", "lifetime")


class Claim(msgspec.Struct, frozen=True):
    """One property of every store. `str(claim)` is the claim as text.

    `waits`: the claim mostly sleeps (a lease must expire) and checks no exact revision, so it may run concurrently with
    others that wait. `reopens`: the claim is about data that outlives the object, and applies only to persistent
    stores.
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
        """Check the claim. Raise AssertionError, or the store's exception, with a note that names the claim."""
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
    """The environment of a claim: an open store, and a private part of it (`prefix`)."""

    store: Store
    """Open from the start."""

    def __init__(self, open_store: Callable[[], Store], *, persistent: bool, on_time: OnTime = on_time) -> None:
        self._open_store, self.on_time = open_store, on_time
        self._opened: list[Store] = []
        self.persistent = persistent
        self.prefix = f"/check-store/{secrets.token_hex(6)}/"

    def key(self, name: str) -> str:
        """Return a key of this trial."""
        return self.prefix + name

    async def open(self) -> Store:
        """Open the trial's store, again if necessary."""
        self.store = await self._enter(self._open_store())
        return self.store

    async def second(self) -> Store:
        """Return another client of the same data; the same client if the data lives in one object."""
        return await self._enter(self._open_store()) if self.persistent else self.store

    async def reopen(self) -> Store:
        """Close every client, then open the store again. For claims about persistent data."""
        await self.aclose()
        return await self.open()

    def fresh(self) -> Store:
        """Return a store that is not open yet; on the same data if that persists."""
        return self._open_store()

    async def aclose(self, *, tidy: bool = False) -> None:
        """Close every client; `tidy` deletes what the trial wrote."""
        if tidy and self.persistent:
            await (await self.open()).delete_prefix(self.prefix)
        while self._opened:
            await self._opened.pop().aclose()

    async def revision(self) -> int:
        """Return the present revision of the store."""
        return (await self.store.range(self.prefix, limit=1)).revision

    async def all(self, store: Store | None = None, *, under: str = "", revision: int | None = None) -> Page:
        """Return everything of this trial, or under a part of it."""
        return await (store or self.store).range(self.prefix + under, revision=revision)

    async def state(self, store: Store | None = None, *, under: str = "") -> dict[str, bytes]:
        """Return the keys and values of this trial."""
        return values((await self.all(store, under=under)).items)

    async def got(self, key: str) -> KeyValue:
        """Return a key that must exist."""
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
    """Register an async function as a claim; its name is the claim as text."""

    def register(body: Callable[[Trial], Awaitable[None]]) -> Callable[[Trial], Awaitable[None]]:
        _CLAIMS.append(Claim(getattr(body, "__name__", "?"), body, waits, reopens))
        return body

    return register


_CLAIMS: list[Claim] = []


def store_claims(*, persistent: bool = True) -> Sequence[Claim]:
    """Return all claims about stores; `persistent=False` omits those about reopening."""
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
    """Check that a driver implements the store port; raise a group with all failures.

    `open_store()` returns a store that is not open yet. Each call returns a new client of the same data, and several
    may be open at once. With `persistent=False`, for a store whose data lives in the object itself, the suite uses one
    client at a time and omits claims about reopening. Existing data of the store is not touched, but its history may be
    compacted. No other process may write to it during the run, because claims check exact revisions. `only` names the
    claims to check (see `store_claims`). `on_time` checks durations.

    A run takes about half a minute: leases are awaited in the time of the event loop.
    """
    await check_all(
        "store",
        store_claims(persistent=persistent),
        lambda claim: claim.check(open_store, persistent=persistent, on_time=on_time),
        only,
    )


# Vocabulary of claims


def values(items: Sequence[KeyValue]) -> dict[str, bytes]:
    """Return keys and their values, in the given order."""
    return {kv.key: kv.value for kv in items}


async def take(watch: Watch, count: int) -> list[Event]:
    """Return the next `count` events; they must arrive in time."""
    events: list[Event] = []
    try:
        async with asyncio.timeout(WITHIN):
            while len(events) < count:
                events.append(await anext(watch))
    except TimeoutError:
        raise AssertionError(f"{len(events)} of {count} events came within {WITHIN:g} s") from None
    return events


async def take_until(watch: Watch, key: str) -> list[Event]:
    """Return every event before the next change of `key`, to check that nothing else arrived."""
    events: list[Event] = []
    while True:
        (event,) = await take(watch, 1)
        if event.kv.key == key:
            return events
        events.append(event)


def follow(state: dict[str, bytes], events: Sequence[Event]) -> dict[str, bytes]:
    """Apply `events` to `state`, in place."""
    for event in events:
        if event.type == "put":
            state[event.kv.key] = event.kv.value
        else:
            del state[event.kv.key]
    return state
