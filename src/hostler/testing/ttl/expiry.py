"""Expiry of records, and its consequences."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hostler.testing.claim import loop_time, side_by_side
from hostler.testing.ttl.claim import LONG, POLL, TTL, claim

if TYPE_CHECKING:
    from hostler.testing.ttl.claim import TtlTrial


@claim(waits=True)
async def a_record_lives_for_its_ttl_and_not_much_longer(t: TtlTrial) -> None:
    async def live(ttl: float) -> None:
        key = t.key(f"{ttl}")
        began = loop_time()
        await t.insert(key, "value", ttl=ttl)
        await t.lapsed(key, ttl, began)

    await side_by_side(live(TTL), live(0.3), live(1.5))


@claim(waits=True)
async def an_expired_record_is_found_by_no_verb(t: TtlTrial) -> None:
    key = t.key()
    await t.insert(key, "value", ttl=TTL)
    await t.lapsed(key, TTL, 0)
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
        await t.lapsed(key, TTL, began)


@claim(waits=True)
async def a_swap_to_a_shorter_life_ends_sooner_and_leaves_the_key_free(t: TtlTrial) -> None:
    async def shorten(first: float) -> None:
        key = t.key(f"{first}")
        assert await t.storage.insert_if_not_exist(key, "value", ttl=first)
        began = loop_time()
        assert await t.storage.compare_and_swap(key, "value", "other", ttl=TTL)
        await t.lapsed(key, TTL, began)
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
        await t.lapsed(key, TTL, began)


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
    await t.lapsed(t.key("other"), TTL, began)
    await asyncio.sleep(TTL / 2)
    assert await t.other.get(inserted) == "value"
    assert await t.other.get(swapped) == "kept"
    assert not await t.other.insert_if_not_exist(inserted, "again", ttl=0)
    assert not await t.other.insert_if_not_exist(swapped, "again", ttl=0)


def _over(began: float, ttl: float) -> bool:
    """Return whether a record written after `began` can have expired by now: this machine may be slow."""
    return loop_time() >= began + ttl
