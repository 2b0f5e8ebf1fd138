"""Claims: the end of a leadership: lost in time on every storage, or closed with nothing left behind."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from hostler.engine.elections import PATIENCE
from hostler.errors import Closed, Unavailable, Uncertain
from hostler.testing.claim import loop_time, refused, side_by_side
from hostler.testing.elections.claim import LONG, TTL, WITHIN, ElectionTrial, acquire, claim, renewal_begun

if TYPE_CHECKING:
    from hostler.engine.elections import Elections, Leadership
    from hostler.testing.elections.breakable import BreakableTtlStorage, Mood

MARGIN = 0.25
"""Seconds after its deadline in which a leadership must have ended."""


async def _wait_until_lost(t: ElectionTrial, leadership: Leadership, within: float) -> None:
    """Wait until the leadership is lost, which must be soon; it is not held even before the notification."""
    began = loop_time()
    async with asyncio.timeout(WITHIN):
        await leadership.wait_lost()
    assert not leadership.held
    assert leadership.lost is not None
    assert not leadership.released
    t.on_time(loop_time() - began, within + MARGIN, since=began, what="the end of a leadership")


async def _lose_to_another(t: ElectionTrial, by: str | None) -> tuple[Leadership, Elections]:
    """Return a leadership that was lost because another process changed or removed its record."""
    leadership, elections, storage = await t.leader(ttl=TTL)
    if by is None:
        done = await t.storage.compare_and_delete(t.key, leadership.record)
    else:
        done = await t.storage.compare_and_swap(t.key, leadership.record, by, ttl=LONG)
    if not done:
        t.must_stand(leadership, storage)
    assert done
    await _wait_until_lost(t, leadership, TTL / 4)
    return leadership, elections


@claim(waits=True)
async def a_value_changed_under_the_leader_ends_its_leadership_and_stays(t: ElectionTrial) -> None:
    other = json.dumps({"address": "10.0.0.9", "holder": "an operator", "fence": 1_000})
    leadership, elections = await _lose_to_another(t, other)
    await elections.release(t.key)
    await leadership.release()
    await elections.aclose()
    assert await t.storage.get(t.key) == other
    t.leaves()


@claim(waits=True)
async def a_record_deleted_under_the_leader_ends_its_leadership(t: ElectionTrial) -> None:
    leadership, elections = await _lose_to_another(t, None)
    again = await elections.acquire(t.key, "10.0.0.1", ttl=LONG)
    assert again is not None
    assert again.fence > leadership.fence


async def _ride_over(t: ElectionTrial, mood: Mood) -> None:
    leadership, _, storage = await t.leader(ttl=TTL)
    for _ in range(3):
        storage.mood = mood
        await renewal_begun(leadership, storage)
        await asyncio.sleep(TTL / 8)
        storage.mood = "fine"
        await renewal_begun(leadership, storage)
        t.must_stand(leadership, storage)
    await asyncio.sleep(TTL)
    found = await t.storage.get(t.key)
    t.must_stand(leadership, storage)
    assert found == leadership.record


@claim(waits=True)
async def a_storage_that_is_out_of_reach_for_a_while_costs_nothing(t: ElectionTrial) -> None:
    await _ride_over(t, "unavailable")


@claim(waits=True)
async def lost_answers_of_renewals_that_were_done_cost_nothing(t: ElectionTrial) -> None:
    await _ride_over(t, "lost")


@claim(waits=True)
async def lost_answers_of_renewals_that_were_not_done_cost_nothing(t: ElectionTrial) -> None:
    await _ride_over(t, "never")


@claim(waits=True)
async def one_answer_that_never_comes_costs_one_try(t: ElectionTrial) -> None:
    leadership, _, storage = await t.leader(ttl=TTL)
    storage.moods.append("hang")
    await asyncio.sleep(2 * TTL)
    t.must_stand(leadership, storage)
    assert not storage.moods


async def _ends(t: ElectionTrial, mood: Mood) -> None:
    leadership, _, storage = await t.leader(ttl=TTL)
    await asyncio.sleep(TTL / 2)
    t.must_stand(leadership, storage)
    storage.mood = mood
    broken_at = t.clock.now()
    await _wait_until_lost(t, leadership, TTL)
    assert leadership.lost_at is not None
    assert leadership.deadline <= broken_at + TTL, "its deadline counts from after its renewal"
    assert leadership.deadline <= storage.told_at + TTL, "its deadline counts from after its renewal was sent"
    late = leadership.lost_at - leadership.deadline
    assert late >= 0, f"given up {-late:.3f} s too early"
    t.on_time(late, MARGIN, since=loop_time() - (t.clock.now() - leadership.deadline), what="losing a leadership")
    storage.hear()
    await t.free()
    other, _ = await t.elections()
    successor = await acquire(other, t.key)
    assert successor.fence > leadership.fence


@claim(waits=True)
async def a_storage_that_stays_out_of_reach_ends_leadership_in_time(t: ElectionTrial) -> None:
    await _ends(t, "unavailable")


@claim(waits=True)
async def a_storage_that_never_says_what_it_did_ends_leadership_in_time(t: ElectionTrial) -> None:
    await _ends(t, "never")


@claim(waits=True)
async def a_storage_that_hangs_ends_leadership_in_time(t: ElectionTrial) -> None:
    await _ends(t, "hang")


@claim(waits=True)
async def a_storage_that_hangs_and_cannot_be_cancelled_ends_leadership_in_time(t: ElectionTrial) -> None:
    await _ends(t, "deaf")


@claim(waits=True)
async def a_lost_record_is_left_to_lapse(t: ElectionTrial) -> None:
    """Others wait for the expiry while the loser stops."""
    leadership, elections, storage = await t.leader(ttl=TTL)
    storage.mood = "lost"  # renewed until the end, but without an answer
    await _wait_until_lost(t, leadership, TTL)
    await _stands_or_lapsed(t, leadership, storage)
    storage.hear()
    await elections.release(t.key)
    await _stands_or_lapsed(t, leadership, storage)
    await t.free()


async def _stands_or_lapsed(t: ElectionTrial, leadership: Leadership, storage: BreakableTtlStorage) -> None:
    found = await t.storage.get(t.key)
    lives = storage.done_at + TTL - t.clock.now()
    assert found == leadership.record or (found is None and lives <= 0), f"{found} {lives:.3f} s before its end"


@claim(waits=True)
async def the_key_of_a_leader_that_died_is_free_after_its_life(t: ElectionTrial) -> None:
    leadership, _, storage = await t.leader(ttl=TTL)
    storage.mood = "unavailable"
    other, _ = await t.elections()
    successor = await other.acquire(t.key, "10.0.0.2", ttl=LONG)
    if successor is None:
        await t.free()
        assert not leadership.held, "held for longer than its record existed"
        successor = await other.acquire(t.key, "10.0.0.2", ttl=LONG)
    assert not leadership.held, "two lead"
    assert successor is not None
    storage.hear()


FAULTS: tuple[Mood, ...] = ("unavailable", "lost", "never")
STEPS = 5
"""Number of calls of an acquisition: look, claim, read the counter, draw, confirm."""


@claim()
async def what_was_closed_acquires_nothing(t: ElectionTrial) -> None:
    elections, _ = await t.elections()
    await elections.aclose()
    with refused(Closed):
        await elections.acquire(t.key, "10.0.0.1", ttl=LONG)
    assert await t.storage.get(t.key) is None
    assert await t.counter() == 0


@claim()
async def closing_releases_everything(t: ElectionTrial) -> None:
    elections, _ = await t.elections()
    keys = [t.another_key(str(number)) for number in range(3)]
    leaderships = [await acquire(elections, key) for key in keys]
    await elections.aclose()
    assert not any(leadership.held for leadership in leaderships)
    assert all(leadership.released for leadership in leaderships)
    assert [await t.storage.get(key) for key in keys] == [None] * 3
    assert [await t.counter(key) for key in keys] == [leadership.fence for leadership in leaderships]


@claim()
async def closing_twice_and_at_once_is_closing_once(t: ElectionTrial) -> None:
    leadership, elections, _ = await t.leader()
    await asyncio.gather(elections.aclose(), elections.aclose())
    assert await t.storage.get(t.key) is None
    await elections.aclose()
    await elections.release(t.key)
    await leadership.release()


@claim(waits=True)
async def closing_during_a_renewal_removes_the_record(t: ElectionTrial) -> None:
    leadership, elections, storage = await t.leader(ttl=TTL)
    await t.renewal(leadership, storage)
    await elections.aclose()
    assert not leadership.held
    assert await t.storage.get(t.key) is None


@claim(waits=True)
async def closing_while_a_renewal_hangs_is_quick_and_removes_the_record(t: ElectionTrial) -> None:
    hanging: tuple[Mood, ...] = ("hang", "deaf")
    await side_by_side(*(_close_while_it_hangs(t, mood) for mood in hanging))


async def _close_while_it_hangs(t: ElectionTrial, mood: Mood) -> None:
    key = t.another_key(mood)
    elections, storage = await t.elections()
    leadership = await acquire(elections, key, ttl=TTL)
    storage.moods.append(mood)
    await t.renewal(leadership, storage)
    began = loop_time()
    closing = asyncio.create_task(elections.aclose())
    await t.free(2 * PATIENCE, key)
    storage.hear()
    await closing
    t.on_time(loop_time() - began, 3 * PATIENCE, since=began, what="closing")
    assert leadership.released or leadership.lost_at is None or leadership.lost_at >= leadership.deadline


async def _hang_at(t: ElectionTrial, step: int) -> tuple[Elections, str, asyncio.Task[Leadership | None]]:
    """Return an acquisition whose storage hangs at a step."""
    elections, storage = await t.elections()
    key = t.another_key(f"step-{step}")
    storage.after(step, "hang")
    acquiring = asyncio.create_task(elections.acquire(key, "10.0.0.1", ttl=LONG))
    while storage.calls <= step:
        await storage.begun()
    return elections, key, acquiring


@claim(waits=True)
async def closing_during_an_acquisition_ends_it_and_leaves_nothing(t: ElectionTrial) -> None:
    await side_by_side(*(_close_at(t, step) for step in range(STEPS)))


async def _close_at(t: ElectionTrial, step: int) -> None:
    elections, key, acquiring = await _hang_at(t, step)
    began = loop_time()
    await elections.aclose()
    t.on_time(loop_time() - began, 2 * PATIENCE, since=began, what="closing")
    assert await t.storage.get(key) is None
    with refused(Closed):
        await acquiring


@claim(waits=True)
async def a_cancelled_acquisition_leaves_nothing(t: ElectionTrial) -> None:
    await side_by_side(*(_cancel_at(t, step) for step in range(STEPS)))


async def _cancel_at(t: ElectionTrial, step: int) -> None:
    elections, key, acquiring = await _hang_at(t, step)
    acquiring.cancel()
    await asyncio.wait((acquiring,))
    assert acquiring.cancelled()
    assert await t.storage.get(key) is None
    assert await elections.acquire(key, "10.0.0.1", ttl=LONG) is not None
    await elections.aclose()


@claim()
async def an_acquisition_that_meets_a_fault_leads_or_leaves_nothing(t: ElectionTrial) -> None:
    for mood in FAULTS:
        for step in range(STEPS):
            elections, storage = await t.elections()
            storage.after(step, mood)
            try:
                leadership = await elections.acquire(t.key, "10.0.0.1", ttl=LONG)
            except (Unavailable, Uncertain):
                assert await t.storage.get(t.key) is None
            else:
                assert leadership is not None
                assert await t.storage.get(t.key) == leadership.record
                await leadership.release()
            storage.hear()


@claim(waits=True)
async def an_acquisition_ends_although_the_storage_hangs(t: ElectionTrial) -> None:
    await side_by_side(*(_ends_though_it_hangs(t, step) for step in (0, 1, STEPS - 1)))


async def _ends_though_it_hangs(t: ElectionTrial, step: int) -> None:
    elections, storage = await t.elections()
    key = t.another_key(f"step-{step}")
    storage.after(step, "hang")
    began = loop_time()
    async with asyncio.timeout(WITHIN):
        with refused(Uncertain):
            await elections.acquire(key, "10.0.0.1", ttl=TTL)
    t.on_time(loop_time() - began, TTL + 3 * PATIENCE, since=began, what="an acquisition")
    assert await t.storage.get(key) is None


@claim()
async def a_release_that_is_cancelled_still_removes_the_record(t: ElectionTrial) -> None:
    leadership, elections, storage = await t.leader()
    releasing = asyncio.create_task(leadership.release())
    await storage.begun()
    releasing.cancel()
    await asyncio.wait((releasing,))
    await elections.aclose()
    assert await t.storage.get(t.key) is None


@claim()
async def a_release_that_meets_a_fault_is_repeated(t: ElectionTrial) -> None:
    for mood in FAULTS:
        leadership, elections, storage = await t.leader()
        storage.moods.append(mood)
        await leadership.release()
        assert leadership.released
        assert await t.storage.get(t.key) is None
        await elections.aclose()
