"""The current leader, holders of further election keys and standby replicas, and each change of leader."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from hostler.errors import Unavailable, Uncertain
from hostler.keys.entry import Unreadable
from hostler.keys.families import LEADER, REPLICA, TAKEOVER
from hostler.kit.clock import SystemClock
from hostler.model.replica import LeaderRecord, ReplicaRecord, Takeover
from hostler.ports.ttl import StoreBacked, TellsLife, Watchable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from hostler.ports.store import Store
    from hostler.ports.ttl import TtlStorage

KEYS_LOOKED_AT = 16
"""Election keys that are read from a storage that cannot list keys."""
LOOK_EVERY = 0.5
LOOK_AGAIN = 10.0


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """The holder of election key `key`. `age_s` and `time_left_s` are None where the storage does not know them."""

    key: int
    address: str
    holder: str
    fence: int
    age_s: float | None
    time_left_s: float | None


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A standby replica. `age_s`: seconds since its start."""

    address: str
    holder: str
    age_s: float


class LeaderScreen(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the election. `standing_by` is None where the storage does not know the standby replicas."""

    leader: Holder | None
    others: tuple[Holder, ...]
    """Holders of the keys after the first."""
    standing_by: tuple[Waiting, ...] | None


async def look(storage: TtlStorage) -> LeaderScreen:
    """Return the state of the election.

    The parts are read one after the other, so a takeover in between may be partly visible.
    """
    store = storage.store if isinstance(storage, StoreBacked) else None
    running = {} if store is None else await _running(store)
    found = await _list_leaders(store) if store is not None else await _ask_leaders(storage)
    holders = [await _holder(storage, number, record, running.get(record.holder)) for number, record in found]
    holding = {holder.holder for holder in holders}
    now = SystemClock().wall()
    waiting = [
        Waiting(address=record.address, holder=record.holder, age_s=max(0.0, now - record.started_at))
        for record in sorted(running.values(), key=lambda record: (record.started_at, record.holder))
        if record.holder not in holding
    ]
    return LeaderScreen(
        leader=next((holder for holder in holders if holder.key == 1), None),
        others=tuple(holder for holder in holders if holder.key != 1),
        standing_by=None if store is None else tuple(waiting),
    )


async def history(storage: TtlStorage) -> list[Takeover] | None:
    """Return the last leaderships, newest first; None if the storage is not a store and keeps no history."""
    if not isinstance(storage, StoreBacked):
        return None
    listing = await TAKEOVER.list(storage.store, strict=False)
    return sorted((entry.value for entry in listing.entries), key=lambda one: one.fence, reverse=True)


async def takeovers(storage: TtlStorage, trouble: Callable[[str], None]) -> AsyncGenerator[LeaderRecord | None, None]:
    """Yield the current leader, then each change of leader; None while there is none.

    A leadership that begins and ends between two reads is missed; the fence of the next leader shows the gap.
    """
    key = LEADER.fill(n=1)
    shown: LeaderRecord | None = None
    first = True
    silent = False
    while True:
        try:
            seen = await storage.get(key)
            silent = False
        except (Unavailable, Uncertain) as error:
            if not silent:
                trouble(f"{error}; retrying")
            silent = True
            await asyncio.sleep(LOOK_EVERY)
            continue
        record = None if seen is None else LeaderRecord.stored(seen.encode(), where=key)
        claimed = record is not None and not record.fence  # a takeover is in progress
        if not claimed and (first or record != shown):
            first, shown = False, record
            yield record
        with suppress(Unavailable, Uncertain):
            if isinstance(storage, Watchable):
                await storage.wait_change(key, seen, within=LOOK_AGAIN)
                continue
        await asyncio.sleep(LOOK_EVERY)


async def _running(store: Store) -> dict[str, ReplicaRecord]:
    listing = await REPLICA.list(store, strict=False)
    return {entry.value.holder: entry.value for entry in listing.entries}


async def _list_leaders(store: Store) -> list[tuple[int, LeaderRecord]]:
    found: list[tuple[int, LeaderRecord]] = []
    async for entry in LEADER.scan(store):
        if isinstance(entry, Unreadable):
            raise entry.error
        found.append((int(entry.parts["n"]), entry.value))
    return sorted((number, record) for number, record in found if record.fence)


async def _ask_leaders(storage: TtlStorage) -> list[tuple[int, LeaderRecord]]:
    numbers = range(1, KEYS_LOOKED_AT + 1)
    texts = await asyncio.gather(*(storage.get(LEADER.fill(n=number)) for number in numbers))
    found = [
        (number, LeaderRecord.stored(text.encode(), where=LEADER.fill(n=number)))
        for number, text in zip(numbers, texts)
        if text is not None
    ]
    return [(number, record) for number, record in found if record.fence]


async def _holder(storage: TtlStorage, number: int, record: LeaderRecord, running: ReplicaRecord | None) -> Holder:
    since = running.held_at if running is not None and running.fence == record.fence else None
    left = await storage.time_left(LEADER.fill(n=number)) if isinstance(storage, TellsLife) else None
    return Holder(
        key=number,
        address=record.address,
        holder=record.holder,
        fence=record.fence,
        age_s=None if since is None else max(0.0, SystemClock().wall() - since),
        time_left_s=left,
    )
