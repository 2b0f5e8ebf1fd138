"""Claims: closing, cancelling and failing leave nothing behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hostler.engine.elections import PATIENCE
from hostler.errors import Closed, Unavailable, Uncertain
from hostler.testing.claim import loop_time, refused, side_by_side

from .claim import LONG, TTL, WITHIN, ElectionTrial, acquired, claim

if TYPE_CHECKING:
    from hostler.engine.elections import Elections, Leadership
    from hostler.testing.elections.breakable import Mood

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
    leaderships = [await acquired(elections, key) for key in keys]
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
    leadership = await acquired(elections, key, ttl=TTL)
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
