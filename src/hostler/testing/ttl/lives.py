"""When records end, and what follows from it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from hostler.testing.ttl.claim import LONG, TTL, claim

if TYPE_CHECKING:
    from hostler.testing.ttl.claim import TtlTrial


@claim(waits=True)
async def a_record_lives_for_its_ttl_and_not_much_longer(t: TtlTrial) -> None:
    for ttl in (TTL, 0.3, 1.5):
        key = t.key(f"{ttl}")
        began = time.monotonic()
        assert await t.storage.insert_if_not_exist(key, "value", ttl=ttl)
        await t.lapsed(key, ttl, began)


@claim(waits=True)
async def an_expired_record_is_found_by_no_verb(t: TtlTrial) -> None:
    key = t.key()
    assert await t.storage.insert_if_not_exist(key, "value", ttl=TTL)
    await t.lapsed(key, TTL, 0)
    assert await t.storage.compare_and_swap(key, "value", "new", ttl=LONG) is False
    assert await t.storage.compare_and_delete(key, "value") is False
    assert await t.storage.get(key) is None


@claim(waits=True)
async def an_expired_record_is_inserted_over_with_a_life_of_its_own(t: TtlTrial) -> None:
    key = t.key()
    assert await t.storage.insert_if_not_exist(key, "first", ttl=TTL)
    end = time.monotonic() + TTL + t.storage.lateness(TTL)
    while not await t.other.insert_if_not_exist(key, "second", ttl=LONG):
        assert time.monotonic() < end + 1, "the expired record is still in the way"
        await asyncio.sleep(0.02)
    await asyncio.sleep(TTL)
    assert await t.storage.get(key) == "second"
    assert await t.storage.compare_and_delete(key, "first") is False


@claim(waits=True)
async def a_swap_gives_the_record_another_life(t: TtlTrial) -> None:
    key = t.key()
    assert await t.storage.insert_if_not_exist(key, "value", ttl=2 * TTL)
    end = time.monotonic() + 2 * TTL + t.storage.lateness(2 * TTL) + 2 * TTL
    began = time.monotonic()
    while time.monotonic() < end:
        before, began = began, time.monotonic()
        if not await t.storage.compare_and_swap(key, "value", "value", ttl=2 * TTL):
            assert _over(before, 2 * TTL), "gone although it was renewed"
            return
        await asyncio.sleep(TTL / 2)
    await t.lapsed(key, 2 * TTL, began)


@claim(waits=True)
async def a_swap_to_a_shorter_life_ends_sooner_and_leaves_the_key_free(t: TtlTrial) -> None:
    for first in (LONG, 0):
        key = t.key(f"{first}")
        assert await t.storage.insert_if_not_exist(key, "value", ttl=first)
        began = time.monotonic()
        assert await t.storage.compare_and_swap(key, "value", "other", ttl=TTL)
        await t.lapsed(key, TTL, began)
        assert await t.other.insert_if_not_exist(key, "next", ttl=LONG), f"after {first}"


@claim(waits=True)
async def a_failed_swap_gives_no_other_life(t: TtlTrial) -> None:
    key = t.key()
    began = time.monotonic()
    assert await t.storage.insert_if_not_exist(key, "value", ttl=TTL)
    assert not await t.other.compare_and_swap(key, "wrong", "value", ttl=LONG)
    if await t.other.insert_if_not_exist(key, "value", ttl=LONG):
        assert _over(began, TTL), "inserted over a live record"
    else:
        await t.lapsed(key, TTL, began)


@claim(waits=True)
async def a_record_with_ttl_zero_never_expires(t: TtlTrial) -> None:
    inserted, swapped = t.key("inserted"), t.key("swapped")
    assert await t.storage.insert_if_not_exist(inserted, "value", ttl=0)
    began = time.monotonic()
    assert await t.storage.insert_if_not_exist(swapped, "value", ttl=TTL)
    if not await t.storage.compare_and_swap(swapped, "value", "kept", ttl=0):
        assert _over(began, TTL), "not swapped although it lived"
        assert await t.storage.insert_if_not_exist(swapped, "kept", ttl=0)
    await asyncio.sleep(TTL + t.storage.lateness(TTL) + 1)
    assert await t.other.get(inserted) == "value"
    assert await t.other.get(swapped) == "kept"
    assert not await t.other.insert_if_not_exist(inserted, "again", ttl=0)
    assert not await t.other.insert_if_not_exist(swapped, "again", ttl=0)


def _over(began: float, ttl: float) -> bool:
    """Whether a record that was written after `began` can have ended by now: this machine may be slow."""
    return time.monotonic() >= began + ttl
