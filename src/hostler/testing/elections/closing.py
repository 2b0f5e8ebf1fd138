"""Claims: closing, cancelling and failing leave nothing behind."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from hostler.errors import Closed, Unavailable, Uncertain
from hostler.testing.claim import refused

from .claim import LONG, TTL, ElectionTrial, acquired, claim

if TYPE_CHECKING:
    from hostler.testing.elections.breakable import Mood

FAULTS: tuple[Mood, ...] = ("unavailable", "lost", "never")
STEPS = 5
"""Calls that an acquisition makes: look, claim, read the counter, draw, confirm."""


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
    await storage.begun()
    await elections.aclose()
    assert not leadership.held
    assert await t.storage.get(t.key) is None


@claim(waits=True)
async def closing_while_a_renewal_hangs_is_quick_and_removes_the_record(t: ElectionTrial) -> None:
    hanging: tuple[Mood, ...] = ("hang", "deaf")
    for mood in hanging:
        leadership, elections, storage = await t.leader(ttl=TTL)
        storage.moods.append(mood)
        await storage.begun()
        started = time.monotonic()
        closing = asyncio.create_task(elections.aclose())
        await t.free(1.5)
        storage.hear()
        await closing
        assert time.monotonic() - started < 4
        assert leadership.released


@claim()
async def closing_during_an_acquisition_ends_it_and_leaves_nothing(t: ElectionTrial) -> None:
    for step in range(STEPS):
        elections, storage = await t.elections()
        storage.after(step, "hang")
        acquiring = asyncio.create_task(elections.acquire(t.key, "10.0.0.1", ttl=LONG))
        while storage.calls <= step:
            await storage.begun()
        started = time.monotonic()
        await elections.aclose()
        assert time.monotonic() - started < 4
        assert await t.storage.get(t.key) is None
        with refused(Closed):
            await acquiring


@claim()
async def a_cancelled_acquisition_leaves_nothing(t: ElectionTrial) -> None:
    for step in range(STEPS):
        elections, storage = await t.elections()
        storage.after(step, "hang")
        acquiring = asyncio.create_task(elections.acquire(t.key, "10.0.0.1", ttl=LONG))
        while storage.calls <= step:
            await storage.begun()
        acquiring.cancel()
        await asyncio.wait((acquiring,))
        assert acquiring.cancelled()
        assert await t.storage.get(t.key) is None
        assert await elections.acquire(t.key, "10.0.0.1", ttl=LONG) is not None
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
    for step in (0, 1, STEPS - 1):
        elections, storage = await t.elections()
        storage.after(step, "hang")
        async with asyncio.timeout(2 * TTL + 4):
            with refused(Uncertain):
                await elections.acquire(t.key, "10.0.0.1", ttl=TTL)
        assert await t.storage.get(t.key) is None


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
