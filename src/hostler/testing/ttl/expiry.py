"""Claims: expiry of records, its consequences, and waiting for a change."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hostler.ports.ttl import Watchable
from hostler.testing.claim import loop_time, side_by_side
from hostler.testing.ttl.claim import LONG, POLL, TTL, WITHIN, claim

if TYPE_CHECKING:
    from hostler.testing.ttl.claim import TtlTrial


@claim(waits=True)
async def a_record_lives_for_its_ttl_and_not_much_longer(t: TtlTrial) -> None:
    async def live(ttl: float) -> None:
        key = t.key(f"{ttl}")
        began = loop_time()
        await t.insert(key, "value", ttl=ttl)
        await t.wait_until_lapsed(key, ttl, began)

    await side_by_side(live(TTL), live(0.3), live(1.5))


@claim(waits=True)
async def an_expired_record_is_found_by_no_verb(t: TtlTrial) -> None:
    key = t.key()
    await t.insert(key, "value", ttl=TTL)
    await t.wait_until_lapsed(key, TTL, 0)
    assert await t.storage.compare_and_swap(key, "value", "new", ttl=LONG) is False
    assert await t.storage.compare_and_delete(key, "value") is False
    assert await t.storage.get(key) is None


@claim(waits=True)
async def an_expired_record_is_inserted_over_with_a_life_of_its_own(t: TtlTrial) -> None:
    key = t.key()
    await t.insert(key, "first", ttl=TTL)
    written, latest = loop_time(), TTL + t.storage.lateness(TTL) + 2 * POLL
    while not await t.other.insert_if_not_exist(key, "second", ttl=LONG):
        t.on_time(loop_time() - written, latest, since=written, what="an expired record in the way")
        await asyncio.sleep(POLL)
    await asyncio.sleep(TTL)
    assert await t.storage.get(key) == "second"
    assert await t.storage.compare_and_delete(key, "first") is False


@claim(waits=True)
async def a_swap_gives_the_record_another_life(t: TtlTrial) -> None:
    key = t.key()
    await t.insert(t.key("other"), "value", ttl=TTL)
    began = loop_time()
    await t.insert(key, "value", ttl=TTL)
    while await t.other.get(t.key("other")) is not None:  # a record without renewal, for comparison
        before, began = began, loop_time()
        if not await t.storage.compare_and_swap(key, "value", "value", ttl=TTL):
            assert _over(before, TTL), "gone although it was renewed"
            return
        await asyncio.sleep(TTL / 4)
    alive = await t.other.get(key) is not None
    assert alive or _over(began, TTL), "gone although it was renewed"
    if alive:
        await t.wait_until_lapsed(key, TTL, began)


@claim(waits=True)
async def a_swap_to_a_shorter_life_ends_sooner_and_leaves_the_key_free(t: TtlTrial) -> None:
    async def shorten(first: float) -> None:
        key = t.key(f"{first}")
        assert await t.storage.insert_if_not_exist(key, "value", ttl=first)
        began = loop_time()
        assert await t.storage.compare_and_swap(key, "value", "other", ttl=TTL)
        await t.wait_until_lapsed(key, TTL, began)
        assert await t.other.insert_if_not_exist(key, "next", ttl=LONG), f"after {first}"

    await side_by_side(shorten(LONG), shorten(0))


@claim(waits=True)
async def a_failed_swap_gives_no_other_life(t: TtlTrial) -> None:
    key = t.key()
    began = loop_time()
    await t.insert(key, "value", ttl=TTL)
    assert not await t.other.compare_and_swap(key, "wrong", "value", ttl=LONG)
    if await t.other.insert_if_not_exist(key, "value", ttl=LONG):
        assert _over(began, TTL), "inserted over a live record"
    else:
        await t.wait_until_lapsed(key, TTL, began)


@claim(waits=True)
async def a_record_with_ttl_zero_never_expires(t: TtlTrial) -> None:
    inserted, swapped = t.key("inserted"), t.key("swapped")
    assert await t.storage.insert_if_not_exist(inserted, "value", ttl=0)
    began = loop_time()
    await t.insert(swapped, "value", ttl=TTL)
    if not await t.storage.compare_and_swap(swapped, "value", "kept", ttl=0):
        assert _over(began, TTL), "not swapped although it lived"
        assert await t.storage.insert_if_not_exist(swapped, "kept", ttl=0)
    await t.insert(t.key("other"), "value", ttl=TTL)
    await t.wait_until_lapsed(t.key("other"), TTL, began)
    await asyncio.sleep(TTL / 2)
    assert await t.other.get(inserted) == "value"
    assert await t.other.get(swapped) == "kept"
    assert not await t.other.insert_if_not_exist(inserted, "again", ttl=0)
    assert not await t.other.insert_if_not_exist(swapped, "again", ttl=0)


def _over(began: float, ttl: float) -> bool:
    """Return whether a record written after `began` can have expired by now: this machine may be slow."""
    return loop_time() >= began + ttl


PROMPT = 0.5
"""Seconds in which a change is noticed: less than a usual polling interval."""


async def _wait_for_notice(t: TtlTrial, key: str, seen: str | None) -> tuple[str | None, float]:
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
        value, told = await _wait_for_notice(t, key, seen)
        assert value == "value"
        t.on_time(told - began, PROMPT, since=began, what="returning a difference")


@claim(watches=True)
async def insert_swap_and_delete_are_noticed_at_once(t: TtlTrial) -> None:
    key = t.key()
    steps: list[tuple[str | None, str | None]] = [(None, "one"), ("one", "two"), ("two", None)]
    for old, new in steps:
        waiting = [asyncio.create_task(_wait_for_notice(t, key, old)) for _ in range(3)]
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
    value, told = await _wait_for_notice(t, key, "value")
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
    assert (await _wait_for_notice(t, key, None))[0] == "value"
