"""One process of concurrent clients: a random mix of calls on few keys, each noted in this process's journal.

Started by the campaign with its orders as JSON in the one argument; ends by itself when its calls or its time are used
up, with 0. Unavailable and Uncertain are part of life here; anything else ends the process with a traceback.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

import hostler
from hostler import ModRevision, Unavailable, Uncertain, Value, Version
from hostler.testing.history import Journal, Recorder

if TYPE_CHECKING:
    from hostler import Comparison, KeyValue


class Orders(msgspec.Struct):
    url: str
    journal: str
    name: str
    seed: int
    clients: int
    keys: int
    calls: int
    pause: float = 0.0
    """Seconds between two calls of a client, on average."""
    broken: str = ""
    """How to betray the store's promises, so that the campaign can be seen to fail: `stale`, `denial`."""


class StaleStore:
    """Answers gets from memory for a while: what a cache without invalidation would do."""

    def __init__(self, store: hostler.Store) -> None:
        self._store = store
        self._cache: dict[str, tuple[float, KeyValue | None]] = {}

    async def get(self, key: str) -> KeyValue | None:
        at, kv = self._cache.get(key, (0.0, None))
        if time.monotonic() - at > 0.05:
            kv = await self._store.get(key)
            self._cache[key] = (time.monotonic(), kv)
        return kv

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


class DenyingStore:
    """Says `Unavailable` of every seventh put that happened: an Uncertain reported as a failure."""

    def __init__(self, store: hostler.Store) -> None:
        self._store, self._puts = store, 0

    async def put(self, key: str, value: bytes) -> int:
        revision = await self._store.put(key, value)
        self._puts += 1
        if self._puts % 7 == 0:
            raise Unavailable(f"put {key!r}: denied on purpose")
        return revision

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


class Client:
    """Does one call after another; remembers what it saw of each key, as the ground for compare-and-set."""

    def __init__(self, recorder: Recorder, orders: Orders, number: int) -> None:
        self._recorder, self._orders = recorder, orders
        self._name = f"{orders.name}.{number}"
        self._rng = random.Random(f"{orders.seed}.{self._name}")
        self._seen: dict[str, KeyValue | None] = {}
        self._made = 0

    async def run(self, until: float) -> None:
        rng = self._rng
        for _ in range(self._orders.calls):
            if time.monotonic() > until:
                return
            try:
                await self._one(f"/register/{rng.randrange(self._orders.keys)}")
            except (Unavailable, Uncertain):
                await asyncio.sleep(rng.uniform(0.01, 0.1))
            if self._orders.pause:
                await asyncio.sleep(rng.uniform(0, 2 * self._orders.pause))
            elif rng.random() < 0.1:
                await asyncio.sleep(rng.uniform(0, 0.01))

    async def _one(self, key: str) -> None:
        choice = self._rng.random()
        if choice < 0.4:
            self._seen[key] = await self._recorder.get(key)
        elif choice < 0.6:
            await self._recorder.put(key, self._value())
        elif choice < 0.68:
            await self._recorder.delete(key)
        else:
            if self._rng.random() < 0.7 or key not in self._seen:
                self._seen[key] = await self._recorder.get(key)
            new = None if self._rng.random() < 0.1 else self._value()
            await self._recorder.cas(self._condition(key), new)

    def _value(self) -> bytes:
        self._made += 1
        return f"{self._name}/{self._made}".encode()

    def _condition(self, key: str) -> Comparison:
        seen = self._seen.get(key)
        if seen is None:
            return Version(key) == 0
        return self._rng.choice(
            (ModRevision(key) == seen.mod_revision, Version(key) == seen.version, Value(key) == seen.value)
        )


async def main(orders: Orders) -> None:
    with Journal(orders.journal) as journal:
        async with await opened(orders.url, time.monotonic() + 60) as store:
            Path(f"{orders.journal}.ready").touch()
            go = Path(orders.journal).with_name("go")
            while not go.exists():
                await asyncio.sleep(0.005)
            until = float(go.read_text())  # on the clock that all processes of a machine share
            wrapped: object = {"stale": StaleStore, "denial": DenyingStore}.get(orders.broken, lambda s: s)(store)
            async with asyncio.TaskGroup() as group:
                for number in range(orders.clients):
                    recorder = Recorder(wrapped, journal, f"{orders.name}.{number}")  # type: ignore[arg-type]
                    group.create_task(Client(recorder, orders, number).run(until))


async def opened(url: str, until: float) -> hostler.Store:
    """The store, entered and left by the caller's `async with`, once it can be reached."""
    while True:
        store = hostler.open_store(url)
        try:
            async with store:
                await store.status()
        except Unavailable:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.05)
        else:
            return hostler.open_store(url)


if __name__ == "__main__":
    asyncio.run(main(msgspec.json.decode(sys.argv[1], type=Orders)))
