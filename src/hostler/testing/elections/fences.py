"""Claims: the fence only grows, and the guard holds exactly while the leadership is held."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hostler.errors import Damaged, Invalid
from hostler.ports.store import Put
from hostler.ports.ttl import StoreBacked
from hostler.testing.claim import refused

from .claim import LONG, TTL, WITHIN, ElectionTrial, acquired, claim

if TYPE_CHECKING:
    from hostler.testing.elections.breakable import Mood


@claim()
async def the_fence_grows_over_release_restart_and_change_of_holder(t: ElectionTrial) -> None:
    fences: list[int] = []
    for _ in range(3):
        elections, _ = await t.elections()
        for _ in range(3):
            leadership = await acquired(elections, t.key)
            fences.append(leadership.fence)
            assert await t.counter() == leadership.fence
            await leadership.release()
        await elections.aclose()
        assert await t.counter() == fences[-1]
    assert fences == sorted(set(fences))


@claim(waits=True)
async def the_fence_grows_over_expiry(t: ElectionTrial) -> None:
    first, _, storage = await t.leader(ttl=TTL)
    storage.mood = "unavailable"
    await first.wait_lost()
    await t.free()
    assert await t.counter() == first.fence
    second, _, _ = await t.leader()
    assert second.fence > first.fence
    storage.hear()


@claim()
async def lost_answers_never_give_a_fence_twice(t: ElectionTrial) -> None:
    fences: list[int] = []
    for _ in range(2):
        elections, storage = await t.elections()
        for _ in range(2):
            storage.after(3, "lost")  # look, claim, read the counter, draw
            leadership = await acquired(elections, t.key)
            fences.append(leadership.fence)
            await leadership.release()
            storage.after(3, "never")
            leadership = await acquired(elections, t.key)
            fences.append(leadership.fence)
            await leadership.release()
    assert fences == sorted(set(fences))


@claim()
async def a_lost_answer_to_the_last_step_is_looked_up(t: ElectionTrial) -> None:
    elections, storage = await t.elections()
    moods: tuple[Mood, ...] = ("lost", "never")
    for mood in moods:
        storage.after(4, mood)
        leadership = await elections.acquire(t.key, "10.0.0.1", ttl=LONG)
        assert leadership is not None
        assert await t.storage.get(t.key) == leadership.record
        await leadership.release()


@claim()
async def a_damaged_counter_is_an_error_and_leaves_no_claim(t: ElectionTrial) -> None:
    leadership, elections, _ = await t.leader()
    await leadership.release()
    counter = f"{t.key}.fence"
    for damage in ("many", "-3", "1.5", " 4"):
        assert await t.storage.compare_and_swap(counter, await t.storage.get(counter) or "", damage, ttl=0)
        with refused(Damaged):
            await elections.acquire(t.key, "10.0.0.1", ttl=LONG)
        assert await t.storage.get(t.key) is None
        assert await t.storage.get(counter) == damage


@claim()
async def the_guard_holds_exactly_while_the_leadership_stands(t: ElectionTrial) -> None:
    leadership, _, _ = await t.leader()
    if not isinstance(t.storage, StoreBacked):
        with refused(Invalid) as refusal:
            leadership.guard()
        assert "fence" in str(refusal.error)
        return
    store, work = t.storage.store, t.another_key("work")

    async def write() -> bool:
        return (await store.txn([leadership.guard()], [Put(work, b"done")])).succeeded

    assert await write()
    await leadership.release()
    assert not await write()
    successor, elections, _ = await t.leader()
    assert not await write()
    stale, leadership = leadership, successor
    assert await write()
    assert await t.storage.compare_and_delete(t.key, leadership.record)
    assert not await write()
    await elections.aclose()
    leadership = stale
    assert not await write()
    t.leaves(work)


@claim(waits=True)
async def the_guard_of_a_leader_that_lapsed_fails(t: ElectionTrial) -> None:
    leadership, _, storage = await t.leader(ttl=TTL)
    if not isinstance(t.storage, StoreBacked):
        return
    store, work = t.storage.store, t.another_key("lapsed")
    storage.mood = "hang"
    await t.free()
    assert not (await store.txn([leadership.guard()], [Put(work, b"late")])).succeeded
    storage.hear()
    async with asyncio.timeout(WITHIN):
        await leadership.wait_lost()
