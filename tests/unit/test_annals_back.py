"""Reading the audit backwards from some place reads about as much as it gives, not all of the day before."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from hostler import open_store
from hostler.engine.history_reader import PAGE, HistoryReader, HistorySource
from hostler.engine.idempotent_writer import instants
from hostler.keys.families import AUDIT
from hostler.kit.clock import SystemClock
from hostler.model.access import Audit
from hostler.ports.store import Store

NOON = 1_763_208_000.0
LINES = 6_000


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with open_store("memory://") as store:
        for first in range(0, LINES, 100):
            then = []
            for number in range(first, first + 100):
                day, instant = instants(NOON + number)
                line = Audit(who="ann", verb="vm.stop", subject=f"/x/{number}", before=0, at=NOON + number)
                then.append(AUDIT.put(line, day=day, write=f"{instant}-x"))
            await store.txn([], then)
        yield store


@pytest.mark.parametrize("end", [NOON + LINES, NOON + LINES / 2, NOON + 10.5])
async def test_from_any_place_the_newest_come_first_and_little_is_read(store: Store, end: float) -> None:
    read = 0
    right = store.range

    async def counted(*asked: object, **more: object) -> object:
        nonlocal read
        page = await right(*asked, **more)  # type: ignore[arg-type]
        read += len(page.items)
        return page

    store.range = counted  # type: ignore[method-assign,assignment]
    lines = HistorySource(store, AUDIT.prefix()).back(end)
    found: list[int] = []
    async for some in lines:
        found += [int(AUDIT.entry(kv).value.subject.rpartition("/")[2]) for kv in some]
        if len(found) >= 50:
            break
    await lines.aclose()
    newest = min(LINES, int(end - NOON + 0.99)) - 1
    assert found == list(range(newest, newest - len(found), -1))
    assert read <= 4 * PAGE


async def test_who_reads_much_lets_others_run(store: Store) -> None:
    """One question of an account without rights held the event loop for 0.6 s, and 64 of them for half a minute."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    found = [one async for one in HistoryReader(store, clock=SystemClock()).back(NOON + LINES)]
    other.cancel()
    assert len(found) == LINES
    assert turns > 10
