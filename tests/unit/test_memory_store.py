"""The reference store: leases that cost nothing, and a simulation that repeats itself."""

from __future__ import annotations

import asyncio
import heapq
import random
import time

from hostler.drivers.store.memory import MemoryStore
from hostler.errors import LeaseGone


class Ticking:
    """Time that moves when told, and wakes who sleeps."""

    def __init__(self) -> None:
        self._now = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        self._count += 1
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, self._count, future))
        await future

    async def pass_(self, seconds: float) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        self._now += seconds
        while self._sleepers and self._sleepers[0][0] <= self._now:
            future = heapq.heappop(self._sleepers)[2]
            if not future.done():
                future.set_result(None)
        for _ in range(5):
            await asyncio.sleep(0)


async def test_leases_end_by_themselves_in_the_order_of_their_ends() -> None:
    clock = Ticking()
    async with MemoryStore(clock=clock, rng=random.Random(1)) as store, store.watch("") as watch:
        for key, ttl in (("late", 30), ("soon", 10), ("between", 20), ("kept", 5)):
            lease = await store.grant(ttl)
            await store.put(key, b"", lease=lease)
        await clock.pass_(4)
        await lease.keep_alive()
        await clock.pass_(4)
        await lease.keep_alive()
        await clock.pass_(40)
        events = [await asyncio.wait_for(anext(watch), 30) for _ in range(8)]
        assert [event.kv.key for event in events if event.type == "delete"] == ["soon", "kept", "between", "late"]


async def test_a_shorter_lease_granted_later_ends_first() -> None:
    clock = Ticking()
    async with MemoryStore(clock=clock) as store, store.watch("") as watch:
        await store.put("long", b"", lease=await store.grant(100))
        await clock.pass_(1)
        await store.put("short", b"", lease=await store.grant(1))
        await clock.pass_(1)
        events = [await asyncio.wait_for(anext(watch), 30) for _ in range(3)]
        assert (events[2].type, events[2].kv.key) == ("delete", "short")


async def test_no_verb_sees_a_key_whose_lease_has_ended_even_if_nobody_woke_up() -> None:
    clock = Ticking()
    async with MemoryStore(clock=clock) as store:
        lease = await store.grant(10)
        await store.put("a", b"", lease=lease)
        clock._now = 10.0
        assert await store.get("a") is None
        try:
            await lease.keep_alive()
        except LeaseGone:
            return
        raise AssertionError("it lives")


async def test_ten_thousand_leases_cost_a_verb_nothing() -> None:
    async with MemoryStore() as store:

        async def seconds() -> float:
            began = time.process_time()  # work, without waiting for a processor
            for _ in range(2_000):
                await store.put("a", b"")
                await store.get("a")
            return time.process_time() - began

        await store.grant(3_600)
        few = min([await seconds() for _ in range(3)])
        for _ in range(10_000):
            await store.grant(3_600)
        many = min([await seconds() for _ in range(3)])
        assert many < 3 * few


async def test_leases_granted_and_revoked_for_ever_do_not_pile_up() -> None:
    async with MemoryStore() as store:
        for _ in range(2_000):
            await (await store.grant(3_600)).revoke()
        assert len(store._ends) < 200


async def test_a_seed_repeats_every_lease() -> None:
    async def ids(seed: int) -> list[int]:
        async with MemoryStore(clock=Ticking(), rng=random.Random(seed)) as store:
            return [(await store.grant(10)).id for _ in range(5)]

    assert await ids(1) == await ids(1) != await ids(2)


def test_a_store_made_outside_of_a_loop_works_in_several() -> None:
    store = MemoryStore()

    async def use() -> None:
        async with store:
            lease = await store.grant(60)
            await store.put("a", b"", lease=lease)

    asyncio.run(use())
    asyncio.run(use())


async def test_a_tight_loop_of_reads_leaves_the_event_loop_to_others() -> None:
    async with MemoryStore() as store:
        other = asyncio.ensure_future(asyncio.sleep(0))
        async with asyncio.timeout(30):
            while not other.done():
                await store.get("a")
