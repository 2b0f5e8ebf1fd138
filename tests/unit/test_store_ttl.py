"""A store as a ttl storage: whose lease is whose, when answers come in another order than the questions."""

from __future__ import annotations

import asyncio
from typing import Any

from hostler.drivers.store.memory import MemoryStore
from hostler.drivers.ttl.store import StoreTtlStorage
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
