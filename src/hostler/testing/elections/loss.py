"""Claims: a leadership that cannot be renewed ends in time, whatever the storage does."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from hostler.testing.claim import loop_time

from .claim import LONG, TTL, WITHIN, ElectionTrial, acquired, claim, renewal_begun

if TYPE_CHECKING:
    from hostler.engine.elections import Elections, Leadership
    from hostler.testing.elections.breakable import BreakableTtlStorage, Mood

MARGIN = 0.25
"""Seconds after its deadline in which a leadership must have ended."""


async def _lost(t: ElectionTrial, leadership: Leadership, within: float) -> None:
    """Wait until the leadership is lost, which must be soon; it is not held even before the notification."""
    began = loop_time()
    async with asyncio.timeout(WITHIN):
        await leadership.wait_lost()
    assert not leadership.held
    assert leadership.lost is not None
    assert not leadership.released
    t.on_time(loop_time() - began, within + MARGIN, since=began, what="the end of a leadership")


async def _taken(t: ElectionTrial, by: str | None) -> tuple[Leadership, Elections]:
    """Return a leadership that was lost because another process changed or removed its record."""
    leadership, elections, storage = await t.leader(ttl=TTL)
    if by is None:
        done = await t.storage.compare_and_delete(t.key, leadership.record)
    else:
        done = await t.storage.compare_and_swap(t.key, leadership.record, by, ttl=LONG)
    if not done:
        t.must_stand(leadership, storage)
    assert done
    await _lost(t, leadership, TTL / 4)
    return leadership, elections


@claim(waits=True)
async def a_value_changed_under_the_leader_ends_its_leadership_and_stays(t: ElectionTrial) -> None:
    other = json.dumps({"address": "10.0.0.9", "holder": "an operator", "fence": 1_000})
    leadership, elections = await _taken(t, other)
    await elections.release(t.key)
    await leadership.release()
    await elections.aclose()
    assert await t.storage.get(t.key) == other
    t.leaves()


@claim(waits=True)
async def a_record_deleted_under_the_leader_ends_its_leadership(t: ElectionTrial) -> None:
    leadership, elections = await _taken(t, None)
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
    await _lost(t, leadership, TTL)
    assert leadership.lost_at is not None
    assert leadership.deadline <= broken_at + TTL, "its deadline counts from after its renewal"
    assert leadership.deadline <= storage.told_at + TTL, "its deadline counts from after its renewal was sent"
    late = leadership.lost_at - leadership.deadline
    assert late >= 0, f"given up {-late:.3f} s too early"
    t.on_time(late, MARGIN, since=loop_time() - (t.clock.now() - leadership.deadline), what="losing a leadership")
    storage.hear()
    await t.free()
    other, _ = await t.elections()
    successor = await acquired(other, t.key)
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
    await _lost(t, leadership, TTL)
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
