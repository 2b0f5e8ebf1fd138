"""Behaviour before opening and after closing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hostler.errors import Closed, HostlerError
from hostler.testing.claim import refused
from hostler.testing.ttl.claim import LONG, WITHIN, claim

if TYPE_CHECKING:
    from hostler.ports.ttl import TtlStorage
    from hostler.testing.ttl.claim import TtlTrial


async def _unusable(storage: TtlStorage, key: str) -> None:
    with refused(Closed):
        await storage.get(key)
    with refused(Closed):
        await storage.insert_if_not_exist(key, "value", ttl=LONG)
    with refused(Closed):
        await storage.compare_and_swap(key, "old", "new", ttl=LONG)
    with refused(Closed):
        await storage.compare_and_delete(key, "old")


@claim()
async def a_storage_that_is_not_open_does_nothing(t: TtlTrial) -> None:
    key = t.key()
    storage = t.fresh()
    await _unusable(storage, key)
    async with storage:
        await storage.get(key)
    await _unusable(storage, key)
    await storage.aclose()
    assert await t.storage.get(key) is None


@claim()
async def closing_ends_the_calls_that_run(t: TtlTrial) -> None:
    storage = t.fresh()
    await storage.__aenter__()
    keys = [t.key(f"{number}") for number in range(20)]
    running = [asyncio.create_task(storage.insert_if_not_exist(key, "value", ttl=LONG)) for key in keys]
    await asyncio.sleep(0.01)
    async with asyncio.timeout(WITHIN):
        await storage.aclose()
        outcomes = await asyncio.gather(*running, return_exceptions=True)
    for key, outcome in zip(keys, outcomes, strict=True):
        assert outcome is True or isinstance(outcome, HostlerError), f"{outcome!r}"
        if outcome is True:
            assert await t.storage.get(key) in ("value", None if not t.persistent else "value")
        elif isinstance(outcome, Closed):
            assert not t.persistent or await t.storage.get(key) is None, "refused, yet done"


@claim()
async def a_call_that_is_cancelled_leaves_the_storage_usable(t: TtlTrial) -> None:
    for number in range(20):
        key = t.key(f"{number}")
        running = asyncio.create_task(t.storage.insert_if_not_exist(key, "value", ttl=LONG))
        await asyncio.sleep(0.0005 * number)
        running.cancel()
        await asyncio.wait([running])
        assert await t.storage.get(key) in ("value", None)
    assert await t.storage.insert_if_not_exist(t.key("last"), "value", ttl=LONG)
    assert await t.storage.get(t.key("last")) == "value"
