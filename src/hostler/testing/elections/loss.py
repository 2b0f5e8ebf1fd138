"""Claims: a leadership that cannot be renewed ends, in time, whatever the storage does."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from .claim import LONG, TTL, ElectionTrial, acquired, claim

if TYPE_CHECKING:
    from hostler.engine.elections import Leadership
    from hostler.testing.elections.breakable import Mood

MARGIN = 0.75
"""Seconds that a busy machine may be late."""


async def _lost(leadership: Leadership, within: float) -> None:
    async with asyncio.timeout(within + MARGIN):
        await leadership.wait_lost()
    assert not leadership.held
    assert leadership.lost is not None
    assert not leadership.released


@claim(waits=True)
async def a_value_changed_under_the_leader_ends_its_leadership_and_stays(t: ElectionTrial) -> None:
    leadership, elections, _ = await t.leader(ttl=TTL)
    other = json.dumps({"address": "10.0.0.9", "holder": "an operator", "fence": leadership.fence + 1})
    assert await t.storage.compare_and_swap(t.key, leadership.record, other, ttl=LONG)
    await _lost(leadership, TTL / 4)
    await elections.release(t.key)
    await leadership.release()
    await elections.aclose()
    assert await t.storage.get(t.key) == other
    t.leaves()


@claim(waits=True)
async def a_record_deleted_under_the_leader_ends_its_leadership(t: ElectionTrial) -> None:
    leadership, elections, _ = await t.leader(ttl=TTL)
    assert await t.storage.compare_and_delete(t.key, leadership.record)
    await _lost(leadership, TTL / 4)
    again = await elections.acquire(t.key, "10.0.0.1", ttl=TTL)
    assert again is not None
    assert again.fence > leadership.fence


async def _ride_over(t: ElectionTrial, mood: Mood) -> None:
    leadership, _, storage = await t.leader(ttl=TTL)
    for _ in range(3):
        storage.mood = mood
        await storage.begun()
        await asyncio.sleep(TTL / 4)
        storage.mood = "fine"
        await storage.begun()
        assert leadership.held
    await asyncio.sleep(TTL)
    assert leadership.held
    assert await t.storage.get(t.key) == leadership.record


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
    assert not storage.moods
    assert leadership.held


async def _ends(t: ElectionTrial, mood: Mood) -> None:
    leadership, elections, storage = await t.leader(ttl=TTL)
    await asyncio.sleep(TTL / 2)
    storage.mood = mood
    broken_at = elections.clock.now()
    await _lost(leadership, TTL)
    assert leadership.lost_at is not None
    assert leadership.deadline - TTL / 2 <= broken_at + TTL / 2 + MARGIN
    assert leadership.lost_at <= broken_at + TTL + MARGIN
    assert leadership.lost_at - leadership.deadline <= MARGIN
    storage.hear()
    await t.free()
    other, _ = await t.elections()
    successor = await acquired(other, t.key, ttl=TTL)
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
    """Its time is what others wait for while the loser stops."""
    leadership, elections, storage = await t.leader(ttl=TTL)
    storage.mood = "lost"  # renewed until the end, but nobody was told
    await _lost(leadership, TTL)
    assert await t.storage.get(t.key) == leadership.record
    storage.hear()
    await elections.release(t.key)
    assert await t.storage.get(t.key) == leadership.record
    await t.free()


@claim(waits=True)
async def the_key_of_a_leader_that_died_is_free_after_its_life(t: ElectionTrial) -> None:
    leadership, _, storage = await t.leader(ttl=TTL)
    storage.mood = "unavailable"
    other, _ = await t.elections()
    assert await other.acquire(t.key, "10.0.0.2", ttl=TTL) is None
    await t.free()
    assert not leadership.held, "believed longer than its record stood"
    assert await other.acquire(t.key, "10.0.0.2", ttl=TTL) is not None
    storage.hear()
