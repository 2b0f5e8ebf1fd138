"""A store as a ttl storage: whose lease is whose, when answers come in another order than the questions."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from hostler.drivers.store.memory import MemoryStore
from hostler.drivers.ttl.store import StoreTtlStorage
from hostler.engine.elections import Elections
from hostler.errors import Unavailable, Uncertain
from hostler.testing import VirtualClock, run_virtual

KEY = "a/record"


class LateAnswers(MemoryStore):
    """Does a transaction at once, and answers `late` seconds later."""

    late = 0.0

    async def txn(self, when: Any, then: Any, otherwise: Any = ()) -> Any:
        late = self.late
        result = await super().txn(when, then, otherwise)
        await asyncio.sleep(late)
        return result


def test_a_late_answer_to_a_delete_does_not_end_the_record_that_came_after_it() -> None:
    async def main() -> None:
        store = LateAnswers(clock=VirtualClock())
        async with StoreTtlStorage(store) as storage:
            assert await storage.insert_if_not_exist(KEY, "old", ttl=10)
            store.late = 1.0
            deleting = asyncio.create_task(storage.compare_and_delete(KEY, "old"))
            await asyncio.sleep(0.1)
            store.late = 0.0
            assert await storage.insert_if_not_exist(KEY, "new", ttl=10)
            assert await deleting
            assert await storage.get(KEY) == "new"
            assert await storage.compare_and_swap(KEY, "new", "new", ttl=10)
            await asyncio.sleep(9)
            assert await storage.get(KEY) == "new"
            await asyncio.sleep(2)
            assert await storage.get(KEY) is None

    run_virtual(main)


def test_a_late_answer_to_a_swap_does_not_end_the_record_that_came_after_it() -> None:
    async def main() -> None:
        store = LateAnswers(clock=VirtualClock())
        async with StoreTtlStorage(store) as storage:
            assert await storage.insert_if_not_exist(KEY, "1", ttl=10)
            store.late = 1.0
            swapping = asyncio.create_task(storage.compare_and_swap(KEY, "1", "2", ttl=10))
            await asyncio.sleep(0.1)
            store.late = 0.0
            assert await storage.compare_and_swap(KEY, "2", "3", ttl=10)
            assert await swapping
            assert await storage.get(KEY) == "3"
            for _ in range(4):
                await asyncio.sleep(4)
                assert await storage.compare_and_swap(KEY, "3", "3", ttl=10)
            await asyncio.sleep(11)
            assert await storage.get(KEY) is None

    run_virtual(main)


def test_no_lease_is_left_once_all_records_are_gone() -> None:
    async def main() -> None:
        store = MemoryStore(clock=VirtualClock())
        async with StoreTtlStorage(store) as storage:
            for _ in range(5):
                assert await storage.insert_if_not_exist(KEY, "1", ttl=100)
                assert not await storage.insert_if_not_exist(KEY, "1", ttl=100)
                assert await storage.compare_and_swap(KEY, "1", "2", ttl=100)
                assert not await storage.compare_and_swap(KEY, "1", "2", ttl=100)
                assert await storage.compare_and_swap(KEY, "2", "2", ttl=100)
                assert await storage.compare_and_delete(KEY, "2")
                assert (await store.status()).details["leases"] == "0"

    run_virtual(main)


class Wire(MemoryStore):
    """Transactions, by their number: one whose answer is lost, one that is slow and arrives although it was given up.

    `down`: nothing that is asked from then on gets through.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.count = 0
        self.lost: set[int] = set()
        self.slow: dict[int, float] = {}
        self.down = False
        self.arrived: list[bool] = []
        """Whether each slow one did anything."""
        self._under_way: set[asyncio.Task[Any]] = set()

    async def txn(self, when: Any, then: Any, otherwise: Any = ()) -> Any:
        if self.down:
            raise Unavailable("the wire is cut")
        self.count += 1
        if self.count in self.slow:
            late = asyncio.create_task(self._later(self.slow[self.count], when, then, otherwise))
            self._under_way.add(late)
            late.add_done_callback(self._under_way.discard)
            return await asyncio.shield(late)
        result = await super().txn(when, then, otherwise)
        if self.count in self.lost:
            raise Uncertain("the answer was lost")
        return result

    async def _later(self, late: float, when: Any, then: Any, otherwise: Any) -> Any:
        await asyncio.sleep(late)
        result = await super().txn(when, then, otherwise)
        self.arrived.append(result.succeeded)
        return result


def test_a_renewal_that_arrives_late_does_not_move_the_record_back_to_an_older_lease() -> None:
    async def main() -> None:
        store = Wire(clock=VirtualClock())
        async with StoreTtlStorage(store) as storage:
            store.lost = {1}  # so the lease of the record is not known, and renewals must move it
            with suppress(Uncertain):
                await storage.insert_if_not_exist(KEY, "mine", ttl=8)
            store.slow = {3: 2.5}
            with suppress(TimeoutError):
                async with asyncio.timeout(2):
                    await storage.compare_and_swap(KEY, "mine", "mine", ttl=8)
            assert await storage.compare_and_swap(KEY, "mine", "mine", ttl=8)  # at 2
            await asyncio.sleep(7.9)
            assert store.arrived == [False]
            assert await storage.get(KEY) == "mine"
            await asyncio.sleep(1.2)
            assert await storage.get(KEY) is None

    run_virtual(main)


def test_a_renewal_that_a_late_one_overtook_looks_again_and_is_no_false() -> None:
    async def main() -> None:
        store = Wire(clock=VirtualClock())
        async with StoreTtlStorage(store) as storage:
            store.lost = {1}
            with suppress(Uncertain):
                await storage.insert_if_not_exist(KEY, "mine", ttl=8)
            store.slow = {3: 2.5, 5: 1.0}  # the first is given up at 2 and arrives at 2.5, before the second
            with suppress(TimeoutError):
                async with asyncio.timeout(2):
                    await storage.compare_and_swap(KEY, "mine", "mine", ttl=8)
            assert await storage.compare_and_swap(KEY, "mine", "mine", ttl=8)
            assert store.arrived == [True, False]

    run_virtual(main)


def test_a_lost_confirmation_a_slow_renewal_and_an_outage_do_not_make_two_leaders() -> None:
    async def main() -> None:
        clock = VirtualClock()
        wire = Wire(clock=clock)
        async with StoreTtlStorage(wire) as storage:
            one = Elections(storage, clock=clock)
            wire.lost, wire.slow = {3}, {5: 2.6}  # the confirmation; the write of the first renewal, at 2
            first = await one.acquire(KEY, "one", ttl=8)
            assert first is not None
            await asyncio.sleep(4.8)
            assert wire.arrived, "the late one has not arrived yet"
            assert first.deadline > 12, "it was renewed meanwhile"
            wire.down = True
            await asyncio.sleep(first.deadline - clock.now() - 0.001)
            assert first.held
            assert await storage.get(KEY) == first.record, "another may lead while the first still believes"
            await first.wait_lost()
            wire.down = False
            await one.aclose()

    run_virtual(main)


class SlowGrants(MemoryStore):
    """By the time that a lease is told of, it may be over."""

    async def grant(self, ttl: float) -> Any:
        lease = await super().grant(ttl)
        await self._clock.sleep(2.0)
        return lease


def test_a_record_whose_life_is_over_before_it_is_written_is_unavailable_and_not_there() -> None:
    async def main() -> None:
        async with StoreTtlStorage(SlowGrants(clock=VirtualClock())) as storage:
            with pytest.raises(Unavailable, match="longer than its ttl of 1 s; nothing was written"):
                await storage.insert_if_not_exist("key", "one", ttl=1)
            assert await storage.get("key") is None
            assert await storage.insert_if_not_exist("key", "one", ttl=60)
            with pytest.raises(Unavailable):
                await storage.compare_and_swap("key", "one", "two", ttl=1)
            assert await storage.get("key") == "one"

    run_virtual(main)
