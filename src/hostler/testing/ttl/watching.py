"""Waiting for a change, on storages that can watch."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hostler.ports.ttl import Watchable
from hostler.testing.claim import loop_time
from hostler.testing.ttl.claim import LONG, TTL, WITHIN, claim

if TYPE_CHECKING:
    from hostler.testing.ttl.claim import TtlTrial

PROMPT = 0.5
"""Seconds in which a change is noticed: less than a usual polling interval."""


async def _noticed(t: TtlTrial, key: str, seen: str | None) -> tuple[str | None, float]:
    """Return the result of the wait, and when it returned."""
    assert isinstance(t.storage, Watchable)
    value = await t.storage.wait_change(key, seen, within=WITHIN)
    return value, loop_time()


@claim(watches=True)
async def what_differs_already_is_told_at_once(t: TtlTrial) -> None:
    key = t.key()
    assert await t.storage.insert_if_not_exist(key, "value", ttl=LONG)
    for seen in (None, "other"):
        began = loop_time()
        value, told = await _noticed(t, key, seen)
        assert value == "value"
        t.on_time(told - began, PROMPT, since=began, what="returning a difference")


@claim(watches=True)
async def insert_swap_and_delete_are_noticed_at_once(t: TtlTrial) -> None:
    key = t.key()
    steps: list[tuple[str | None, str | None]] = [(None, "one"), ("one", "two"), ("two", None)]
    for old, new in steps:
        waiting = [asyncio.create_task(_noticed(t, key, old)) for _ in range(3)]
        await asyncio.sleep(0.1)  # shorter than the interval of a storage that polls every second
        assert not any(task.done() for task in waiting)
        if old is None:
            assert await t.other.insert_if_not_exist(key, "one", ttl=LONG)
        elif new is None:
            assert await t.other.compare_and_delete(key, old)
        else:
            assert await t.other.compare_and_swap(key, old, new, ttl=LONG)
        changed = loop_time()
        for value, told in await asyncio.gather(*waiting):
            assert value == new
            t.on_time(told - changed, PROMPT, since=changed, what=f"noticing {old!r} to {new!r}")


@claim(watches=True, waits=True)
async def the_end_of_a_life_is_noticed(t: TtlTrial) -> None:
    key = t.key()
    began = loop_time()
    assert await t.other.insert_if_not_exist(key, "value", ttl=TTL)
    written = loop_time()
    value, told = await _noticed(t, key, "value")
    assert value is None
    assert told >= began + TTL
    t.on_time(told - written, TTL + t.storage.lateness(TTL) + PROMPT, since=written, what="noticing an expiry")


@claim(watches=True, waits=True)
async def a_wait_ends_in_time_when_nothing_changes(t: TtlTrial) -> None:
    key = t.key()
    assert isinstance(t.storage, Watchable)
    assert await t.storage.insert_if_not_exist(key, "value", ttl=LONG)
    assert await t.other.insert_if_not_exist(t.key("record2"), "noise", ttl=LONG)
    began = loop_time()
    waiting = asyncio.create_task(t.storage.wait_change(key, "value", within=1.0))
    await asyncio.sleep(0.3)
    assert await t.other.compare_and_swap(key, "value", "value", ttl=LONG)  # a renewal is not a change
    assert await t.other.compare_and_swap(t.key("record2"), "noise", "more", ttl=LONG)
    assert await waiting == "value"
    waited = loop_time() - began
    assert waited + 0.01 >= 1.0
    t.on_time(waited, 1.0 + PROMPT, since=began, what="a wait of one second")


@claim(watches=True)
async def a_wait_that_is_cancelled_leaves_the_storage_as_it_was(t: TtlTrial) -> None:
    key = t.key()
    assert isinstance(t.storage, Watchable)
    for pause in (0, 0, 0.01, 0.2):
        waiting = asyncio.create_task(t.storage.wait_change(key, None, within=WITHIN))
        await asyncio.sleep(pause)
        waiting.cancel()
        await asyncio.wait([waiting])
    assert await t.storage.insert_if_not_exist(key, "value", ttl=LONG)
    assert (await _noticed(t, key, None))[0] == "value"
