"""Claims: a slow reader gets an error, and does not delay others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hostler.errors import Lagged
from hostler.ports.store import MAX_OPERATIONS, Put

from .claim import WITHIN, Trial, claim, take

if TYPE_CHECKING:
    from hostler.ports.store import Event, Watch

TRANSACTIONS = 85
"""With 128 events each: more than any driver should buffer for one reader."""


@claim()
async def a_slow_reader_gets_every_event_or_is_told_where_to_go_on(t: Trial) -> None:
    expected = TRANSACTIONS * MAX_OPERATIONS
    start = await t.revision() + 1
    async with t.store.watch(t.prefix) as watch:
        async with asyncio.timeout(WITHIN):  # writers do not wait for the reader
            for number in range(TRANSACTIONS):
                await t.store.txn([], [Put(t.key(f"{key}"), b"%d" % number) for key in range(MAX_OPERATIONS)])
        events, resume = await _until_lagged(watch, expected)
    lagged = 0
    while resume is not None:
        lagged += 1
        assert lagged < 10
        assert all(event.kv.mod_revision < resume for event in events)
        async with t.store.watch(t.prefix, start_revision=resume) as watch:
            more, resume = await _until_lagged(watch, expected - len(events))
            events += more
    for number in range(TRANSACTIONS):
        together = events[number * MAX_OPERATIONS : (number + 1) * MAX_OPERATIONS]
        assert [event.kv.key for event in together] == [t.key(f"{key}") for key in range(MAX_OPERATIONS)]
        assert {(event.kv.mod_revision, event.kv.value) for event in together} == {(start + number, b"%d" % number)}
    assert len(events) == expected


async def _until_lagged(watch: Watch, count: int) -> tuple[list[Event], int | None]:
    events: list[Event] = []
    try:
        while len(events) < count:
            events += await take(watch, 1)
    except Lagged as error:
        return events, error.revision
    return events, None


@claim()
async def a_slow_reader_does_not_slow_the_others(t: Trial) -> None:
    async with t.store.watch(t.prefix) as slow, t.store.watch(t.prefix) as quick:
        for number in range(TRANSACTIONS):
            await t.store.txn([], [Put(t.key(f"{key}"), b"%d" % number) for key in range(MAX_OPERATIONS)])
            events = await take(quick, MAX_OPERATIONS)
            assert {event.kv.value for event in events} == {b"%d" % number}
        (first,) = await take(slow, 1)
        assert first.kv.value == b"0"
