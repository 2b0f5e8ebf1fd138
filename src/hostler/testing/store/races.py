"""Claims: several concurrent clients."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from hostler.ports.store import Get, KeyValue, ModRevision, Put, Version

from .claim import Trial, claim

if TYPE_CHECKING:
    from hostler.ports.store import Store

ROUNDS = 200


@claim()
async def of_two_clients_that_race_for_a_key_one_wins(t: Trial) -> None:
    rival = await t.second()

    async def run(store: Store, name: bytes, key: str) -> bytes | None:
        return name if (await store.txn([Version(key) == 0], [Put(key, name)])).succeeded else None

    for number in range(ROUNDS):
        key = t.key(f"{number}")
        racers = [run(t.store, b"first", key), run(rival, b"second", key)]
        random.shuffle(racers)
        (winner,) = [name for name in await asyncio.gather(*racers) if name]
        kv = await t.got(key)
        assert (kv.value, kv.version) == (winner, 1)


@claim()
async def concurrent_increments_are_all_counted(t: Trial) -> None:
    counters = [t.key(f"counter/{number}") for number in range(3)]
    for key in counters:
        await t.store.put(key, b"0")
    clients = [t.store, await t.second()] * 3

    async def increment(store: Store, rng: random.Random) -> None:
        for _ in range(15):
            key = rng.choice(counters)
            while True:
                kv = await store.get(key)
                assert kv is not None
                then = [Put(key, b"%d" % (int(kv.value) + 1))]
                if (await store.txn([ModRevision(key) == kv.mod_revision], then)).succeeded:
                    break

    await asyncio.gather(*(increment(store, random.Random(seed)) for seed, store in enumerate(clients)))
    page = await t.all()
    assert sum(int(kv.value) for kv in page.items) == 15 * len(clients)
    assert all(kv.version == int(kv.value) + 1 for kv in page.items)


@claim()
async def nobody_sees_half_a_transaction(t: Trial) -> None:
    keys = [t.key(f"pair/{name}") for name in "abcdef"]
    reader = await t.second()
    done = asyncio.Event()

    async def write() -> None:
        for number in range(60):
            await t.store.txn([], [Put(key, b"%d" % number) for key in keys])
        done.set()

    async def read() -> None:
        while not done.is_set():
            seen = {kv.value for kv in (await t.all(reader, under="pair/")).items}
            assert len(seen) <= 1, f"a range saw {seen}"
            got = (await reader.txn([], [Get(key) for key in keys])).responses
            seen = {kv.value for kv in got if isinstance(kv, KeyValue)}
            assert len(seen) <= 1, f"a transaction saw {seen}"

    await asyncio.gather(write(), read(), read())


@claim()
async def a_write_that_has_returned_is_seen_by_every_client_at_once(t: Trial) -> None:
    other = await t.second()
    key = t.key("a")
    for number in range(50):
        writer, reader = (t.store, other) if number % 2 else (other, t.store)
        revision = await writer.put(key, b"%d" % number)
        kv = await reader.get(key)
        assert kv is not None
        assert (kv.value, kv.mod_revision) == (b"%d" % number, revision)
        page = await t.all(reader)
        assert page.items == (kv,)
        assert page.revision == revision


@claim()
async def concurrent_writers_each_get_their_own_revision(t: Trial) -> None:
    other = await t.second()
    before = await t.revision()
    writes = [(t.store if number % 2 else other).put(t.key(f"{number:03}"), b"") for number in range(100)]
    revisions = await asyncio.gather(*writes)
    assert sorted(revisions) == list(range(before + 1, before + 101))
    assert [kv.mod_revision for kv in (await t.all()).items] == list(revisions)


@claim()
async def a_cancelled_put_happened_or_not_and_the_store_works_on(t: Trial) -> None:
    rng = random.Random(1)
    for number in range(40):
        key = t.key(f"{number}")
        task = asyncio.ensure_future(t.store.put(key, b"cancelled"))
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await t.store.put(key, b"mark")
        kv = await t.got(key)
        # A request in flight when its caller was cancelled may arrive before, after, or never.
        assert (kv.value, kv.version) in ((b"mark", 1), (b"mark", 2), (b"cancelled", 2))


@claim()
async def mixed_load_ends_in_a_consistent_store(t: Trial) -> None:
    clients = [t.store, await t.second()]

    async def work(store: Store, seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(30):
            key = t.key(f"{rng.randrange(10)}")
            verb = rng.randrange(5)
            if verb == 0:
                await store.put(key, b"%d" % seed)
            elif verb == 1:
                await store.delete(key)
            elif verb == 2:
                await store.txn([Version(key) > 1], [Put(key, b"t")], [Put(key, b"e"), Put(key + "/x", b"")])
            elif verb == 3:
                await store.delete_prefix(key)
            else:
                await t.all(store)

    await asyncio.gather(*(work(clients[seed % 2], seed) for seed in range(8)))
    first, second = await t.all(clients[0]), await t.all(clients[1])
    assert first == second
    for kv in first.items:
        assert await t.store.get(kv.key) == kv
        assert await t.store.get(kv.key, revision=first.revision) == kv
        assert 1 <= kv.create_revision <= kv.mod_revision <= first.revision
        assert 1 <= kv.version <= kv.mod_revision - kv.create_revision + 1
