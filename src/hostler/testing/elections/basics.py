"""Claims: exactly one process leads, the record names it, and its fence only grows; invalid arguments are refused."""

from __future__ import annotations

import asyncio
import math
import random
from typing import TYPE_CHECKING, Any

from hostler.errors import Damaged, Invalid
from hostler.keys.families import FENCE, LEADER
from hostler.ports.store import Put
from hostler.ports.ttl import StoreBacked
from hostler.testing.claim import loop_time, refused
from hostler.testing.elections.claim import LONG, TTL, WITHIN, ElectionTrial, acquire, claim

if TYPE_CHECKING:
    from hostler.testing.elections.breakable import Mood


@claim()
async def a_free_key_is_acquired_and_its_record_tells_who_leads(t: ElectionTrial) -> None:
    elections, _ = await t.elections(holder="a process")
    leadership = await elections.acquire(t.key, "10.0.0.7", ttl=LONG)
    assert leadership is not None
    assert leadership.held
    assert leadership.lost is None
    assert await t.record() == {"address": "10.0.0.7", "holder": "a process", "fence": leadership.fence}
    assert await t.counter() == leadership.fence > 0


@claim()
async def a_replica_key_has_its_counter_in_the_family_of_counters(t: ElectionTrial) -> None:
    number = random.randrange(10**6, 10**9)
    key = t.own_key(f"sysvvm/1/{number}")
    assert key == LEADER.fill(n=number)
    elections, _ = await t.elections()
    leadership = await acquire(elections, key)
    assert FENCE.fill(n=number) == f"sysvvm/2/{number}"
    assert await t.storage.get(f"sysvvm/2/{number}") == str(leadership.fence)
    assert (await t.record(key) or {}).keys() == {"address", "holder", "fence"}


@claim()
async def a_key_held_by_another_is_not_acquired(t: ElectionTrial) -> None:
    leadership, _, _ = await t.leader()
    before = await t.storage.get(t.key)
    other, _ = await t.elections()
    assert await other.acquire(t.key, "10.0.0.2", ttl=LONG) is None
    assert await t.storage.get(t.key) == before
    assert await t.counter() == leadership.fence
    assert leadership.held


@claim()
async def a_key_held_by_oneself_is_not_acquired_again(t: ElectionTrial) -> None:
    leadership, elections, _ = await t.leader()
    assert await elections.acquire(t.key, "10.0.0.1", ttl=LONG) is None
    assert leadership.held


@claim()
async def of_many_who_ask_at_once_one_acquires(t: ElectionTrial) -> None:
    crowd = [(await t.elections())[0] for _ in range(6)]
    got = await asyncio.gather(*(elections.acquire(t.key, "10.0.0.1", ttl=LONG) for elections in crowd))
    leaders = [leadership for leadership in got if leadership is not None]
    assert len(leaders) == 1
    record = await t.record()
    assert record is not None
    assert record["fence"] == leaders[0].fence


@claim()
async def who_asks_twice_at_once_gets_one_leadership(t: ElectionTrial) -> None:
    elections, _ = await t.elections()
    got = await asyncio.gather(*(elections.acquire(t.key, "10.0.0.1", ttl=LONG) for _ in range(3)))
    assert len([leadership for leadership in got if leadership is not None]) == 1


@claim()
async def two_processes_with_one_address_are_told_apart(t: ElectionTrial) -> None:
    first, _ = await t.elections()
    second, _ = await t.elections()
    assert first.holder != second.holder
    await acquire(first, t.key, value="10.0.0.1")
    assert await second.acquire(t.key, "10.0.0.1", ttl=LONG) is None
    await second.release(t.key)
    record = await t.record()
    assert record is not None
    assert record["holder"] == first.holder


@claim()
async def keys_are_led_apart(t: ElectionTrial) -> None:
    one, two = t.another_key("one"), t.another_key("two")
    elections, _ = await t.elections()
    other, _ = await t.elections()
    first, second = await acquire(elections, one), await acquire(other, two)
    both = await acquire(elections, t.key)
    await elections.release(one)
    assert not first.held
    assert second.held
    assert both.held


@claim()
async def a_released_key_is_free_at_once(t: ElectionTrial) -> None:
    leadership, elections, _ = await t.leader()
    waiter = asyncio.create_task(leadership.wait_lost())
    await elections.release(t.key)
    began = loop_time()
    await asyncio.wait_for(waiter, WITHIN)
    t.on_time(loop_time() - began, 0.1, since=began, what="noticing a release")
    assert not leadership.held
    assert leadership.released
    assert await t.storage.get(t.key) is None
    other, _ = await t.elections()
    assert await other.acquire(t.key, "10.0.0.2", ttl=LONG) is not None


@claim()
async def who_released_may_acquire_again(t: ElectionTrial) -> None:
    first, elections, _ = await t.leader()
    await elections.release(t.key)
    second = await elections.acquire(t.key, "10.0.0.1", ttl=LONG)
    assert second is not None
    assert second.held
    assert not first.held


@claim()
async def releasing_what_is_not_held_changes_nothing(t: ElectionTrial) -> None:
    elections, _ = await t.elections()
    await elections.release(t.key)
    leadership, _, _ = await t.leader()
    before = await t.storage.get(t.key)
    await elections.release(t.key)
    assert await t.storage.get(t.key) == before
    assert leadership.held


@claim()
async def releasing_twice_is_releasing_once(t: ElectionTrial) -> None:
    leadership, elections, _ = await t.leader()
    await asyncio.gather(leadership.release(), elections.release(t.key), leadership.release())
    successor, _, _ = await t.leader()
    await leadership.release()
    await elections.release(t.key)
    assert successor.held
    assert await t.storage.get(t.key) == successor.record


@claim(waits=True)
async def a_leader_leads_for_as_long_as_it_likes(t: ElectionTrial) -> None:
    leadership, _, storage = await t.leader(ttl=TTL)
    other, _ = await t.elections()
    for _ in range(12):
        await asyncio.sleep(TTL / 4)
        found = await t.storage.get(t.key)
        taken = await other.acquire(t.key, "10.0.0.2", ttl=LONG)
        t.must_stand(leadership, storage)
        assert found == leadership.record
        assert taken is None, "two lead"


@claim()
async def the_fence_grows_over_release_restart_and_change_of_holder(t: ElectionTrial) -> None:
    fences: list[int] = []
    for _ in range(3):
        elections, _ = await t.elections()
        for _ in range(3):
            leadership = await acquire(elections, t.key)
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
            leadership = await acquire(elections, t.key)
            fences.append(leadership.fence)
            await leadership.release()
            storage.after(3, "never")
            leadership = await acquire(elections, t.key)
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


@claim()
async def a_life_that_cannot_be_is_refused(t: ElectionTrial) -> None:
    elections, storage = await t.elections()
    unfit: list[Any] = [0, 0.0, -1, -0.5, math.nan, math.inf, True, "20", None]
    for ttl in unfit:
        with refused(Invalid):
            await elections.acquire(t.key, "10.0.0.1", ttl=ttl)
    assert storage.calls == 0
    assert await elections.acquire(t.key, "10.0.0.1", ttl=LONG) is not None


@claim()
async def a_key_that_cannot_be_is_refused(t: ElectionTrial) -> None:
    elections, storage = await t.elections()
    unfit: list[Any] = ["", None, 1, b"key", "\ud800"]
    for key in unfit:
        with refused(Invalid):
            await elections.acquire(key, "10.0.0.1", ttl=LONG)
    assert storage.calls == 0


@claim()
async def a_value_that_cannot_be_is_refused(t: ElectionTrial) -> None:
    elections, _ = await t.elections()
    unfit: list[Any] = ["", None, 1, b"10.0.0.1", "x" * 70_000]
    for value in unfit:
        with refused(Invalid):
            await elections.acquire(t.key, value, ttl=LONG)
        assert await t.storage.get(t.key) is None
    assert await t.counter() == 0


@claim()
async def any_text_is_an_address(t: ElectionTrial) -> None:
    elections, _ = await t.elections()
    for value in ("::1", "host.example:8080", 'quo"ted \\', "Zürich ☃", "\n\t\x00 ", "x" * 10_000):
        leadership = await elections.acquire(t.key, value, ttl=LONG)
        assert leadership is not None
        record = await t.record()
        assert record is not None
        assert record["address"] == value
        await leadership.release()
