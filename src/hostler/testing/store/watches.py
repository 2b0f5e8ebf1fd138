"""Claims: every event once, in order, from any revision on; a slow reader gets an error and does not delay others."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from hostler.errors import Lagged
from hostler.ports.store import MAX_OPERATIONS, Delete, DeletePrefix, Event, KeyValue, Put, Watch
from hostler.testing.store.claim import WITHIN, Trial, claim, follow, take, take_until

if TYPE_CHECKING:
    from hostler.ports.store import Store


@claim()
async def entering_a_watch_means_that_no_later_change_is_missed(t: Trial) -> None:
    writer = await t.second()
    for number in range(20):
        key = t.key(f"{number}")
        await writer.put(key, b"before")
        async with t.store.watch(t.prefix) as watch:
            revision = await writer.put(key, b"after")
            (event,) = await take(watch, 1)
        assert (event.kv.key, event.kv.value, event.kv.mod_revision) == (key, b"after", revision)


@claim()
async def an_event_tells_what_happened_and_what_was_there_before(t: Trial) -> None:
    key = t.key("a")
    lease = await t.store.grant(60)
    async with t.store.watch(t.prefix) as watch:
        first = await t.store.put(key, b"1", lease=lease)
        await t.store.put(key, b"2")
        await t.store.delete(key)
        await t.store.put(key, b"3")
        events = await take(watch, 4)
    one = KeyValue(key, b"1", first, first, 1, lease.id)
    two = KeyValue(key, b"2", first, first + 1, 2)
    three = KeyValue(key, b"3", first + 3, first + 3, 1)
    assert events == [
        Event("put", one, None),
        Event("put", two, one),
        Event("delete", KeyValue(key, b"", 0, first + 2, 0), two),
        Event("put", three, None),
    ]
    async with t.store.watch(t.prefix, start_revision=first) as watch:
        assert await take(watch, 4) == events
    await lease.revoke()


@claim()
async def a_watch_without_what_was_there_before_sees_the_same_changes(t: Trial) -> None:
    key, other = t.key("a"), t.key("b")
    async with t.store.watch(t.prefix) as full, t.store.watch(t.prefix, previous=False) as plain:
        first = await t.store.put(key, b"1")
        await t.store.txn([], [Put(key, b"2"), Put(other, b"")])
        await t.store.delete_prefix(t.prefix)
        await t.store.put(key, b"2")
        wanted, found = await take(full, 6), await take(plain, 6)
    async with t.store.watch(t.prefix, start_revision=first, previous=False) as plain:
        past = await take(plain, 6)
    for events in (found, past):
        assert [(event.type, event.kv) for event in events] == [(event.type, event.kv) for event in wanted]
        # a driver that has the previous value may return it, but no other value
        for event, right in zip(events, wanted):
            assert event.previous is None or event.previous == right.previous


@claim()
async def a_watch_from_a_revision_has_every_event_from_it_on(t: Trial) -> None:
    revisions = [await t.store.put(t.key(f"{number % 3}"), b"%d" % number) for number in range(12)]
    for index, start in enumerate(revisions):
        async with t.store.watch(t.prefix, start_revision=start) as watch:
            await t.store.put(t.key("mark"), b"")
            events = await take_until(watch, t.key("mark"))
        past = [event.kv.mod_revision for event in events if event.kv.mod_revision <= revisions[-1]]
        assert past == revisions[index:]


@claim()
async def a_watch_may_start_in_the_future(t: Trial) -> None:
    revision = await t.store.put(t.key("now"), b"")
    async with t.store.watch(t.prefix, start_revision=revision + 3) as watch:
        for number in range(1, 6):
            assert await t.store.put(t.key(f"{number}"), b"") == revision + number
        events = await take(watch, 3)
    assert [event.kv.mod_revision for event in events] == [revision + 3, revision + 4, revision + 5]


@claim()
async def a_watch_sees_its_own_prefix_only(t: Trial) -> None:
    async with t.store.watch(t.key("rack1/")) as watch:
        for name in ("rack1", "rack10/a", "rack1/a", "rack2/a", "rack1/\U0010ffff", "rack0/z", "rack1/"):
            await t.store.put(t.key(name), b"")
        await t.store.delete_prefix(t.key("rack"))
        events = await take(watch, 6)
    assert [event.kv.key.removeprefix(t.prefix) for event in events] == [
        *("rack1/a", "rack1/\U0010ffff", "rack1/"),
        *("rack1/", "rack1/a", "rack1/\U0010ffff"),
    ]


@claim()
async def a_watch_of_everything_sees_every_key(t: Trial) -> None:
    async with t.store.watch("") as watch:
        await t.store.put(t.key("a"), b"1")
        await t.store.delete(t.key("a"))
        events = await take(watch, 2)
    assert [(event.type, event.kv.key) for event in events] == [("put", t.key("a")), ("delete", t.key("a"))]


@claim()
async def the_events_of_a_transaction_come_together_in_their_order(t: Trial) -> None:
    for name in ("p/2", "p/1", "gone"):
        await t.store.put(t.key(name), b"")
    async with t.store.watch(t.prefix) as watch:
        result = await t.store.txn(
            [], [Put(t.key("z"), b""), Delete(t.key("gone")), DeletePrefix(t.key("p/")), Put(t.key("a"), b"")]
        )
        events = await take(watch, 5)
        await t.store.put(t.key("mark"), b"")
        assert await take_until(watch, t.key("mark")) == []
    assert [event.kv.key.removeprefix(t.prefix) for event in events] == ["z", "gone", "p/1", "p/2", "a"]
    assert {event.kv.mod_revision for event in events} == {result.revision}


@claim()
async def transactions_of_several_writers_do_not_mix(t: Trial) -> None:
    clients = [t.store, await t.second()]

    async def write(store: Store, name: str) -> None:
        for number in range(15):
            await store.txn([], [Put(t.key(f"{name}/{index}"), b"%d" % number) for index in range(8)])

    async with clients[1].watch(t.prefix) as watch:
        await asyncio.gather(*(write(clients[index % 2], f"w{index}") for index in range(4)))
        events = await take(watch, 4 * 15 * 8)
    revisions = [event.kv.mod_revision for event in events]
    assert revisions == sorted(revisions)
    assert len(set(revisions)) == 60
    for start in range(0, len(events), 8):
        together = events[start : start + 8]
        assert len({event.kv.mod_revision for event in together}) == 1
        assert [event.kv.key[-1] for event in together] == list("01234567")


@claim()
async def list_then_watch_has_no_hole(t: Trial) -> None:
    writer = await t.second()
    done = asyncio.Event()

    async def write(seed: int) -> None:
        rng = random.Random(seed)
        for number in range(60):
            key = t.key(f"{rng.randrange(12)}")
            if rng.random() < 0.3:
                await writer.delete(key)
            else:
                await writer.txn([], [Put(key, b"%d" % number), Put(key + "/x", b"%d" % seed)])

    async def writing() -> None:
        await asyncio.gather(*(write(seed) for seed in range(3)))
        await writer.put(t.key("mark"), b"")
        done.set()

    async def mirror(pause: int) -> dict[str, bytes]:
        for _ in range(pause):
            await asyncio.sleep(0)
        page = await t.all()
        state = {kv.key: kv.value for kv in page.items}
        if t.key("mark") in state:
            return state
        async with t.store.watch(t.prefix, start_revision=page.revision + 1) as watch:
            follow(state, await take_until(watch, t.key("mark")))
        return {**state, t.key("mark"): b""}

    mirrors = [mirror(pause) for pause in (0, 3, 10, 30, 100, 300)]
    _, *states = await asyncio.gather(writing(), *mirrors)
    expected = await t.state()
    for state in states:
        assert state == expected


@claim()
async def leaving_and_resuming_from_the_next_revision_loses_and_repeats_nothing(t: Trial) -> None:
    writer = await t.second()
    start = await t.revision() + 1

    async def write() -> None:
        for number in range(100):
            await writer.put(t.key(f"{number % 7}"), b"%d" % number)

    async def read() -> list[bytes]:
        seen: list[bytes] = []
        resume = start
        while len(seen) < 100:
            async with t.store.watch(t.prefix, start_revision=resume) as watch:
                for event in await take(watch, min(9, 100 - len(seen))):
                    seen.append(event.kv.value)
                    resume = event.kv.mod_revision + 1
        return seen

    _, seen = await asyncio.gather(write(), read())
    assert seen == [b"%d" % number for number in range(100)]


@claim()
async def many_watches_each_get_their_own_events(t: Trial) -> None:
    watches = [t.store.watch(t.key(f"{number:03}/")) for number in range(100)]
    wide = t.store.watch(t.prefix)
    for watch in (*watches, wide):
        await watch.__aenter__()
    try:
        await t.store.txn([], [Put(t.key(f"{number:03}/a"), b"%d" % number) for number in range(100)])
        await t.store.delete_prefix(t.prefix)
        for number, watch in enumerate(watches):
            events = await take(watch, 2)
            assert [event.kv.key for event in events] == [t.key(f"{number:03}/a")] * 2
            assert [event.type for event in events] == ["put", "delete"]
        assert len(await take(wide, 200)) == 200
    finally:
        for watch in (*watches, wide):
            await watch.__aexit__(None, None, None)


@claim()
async def two_watches_of_one_prefix_both_get_everything(t: Trial) -> None:
    async with t.store.watch(t.prefix) as one, t.store.watch(t.prefix) as two:
        await t.store.put(t.key("a"), b"1")
        await t.store.put(t.key("a"), b"2")
        assert await take(one, 2) == await take(two, 2)


@claim()
async def every_client_gets_the_events_of_the_others(t: Trial) -> None:
    other = await t.second()
    async with t.store.watch(t.prefix) as mine, other.watch(t.prefix) as theirs:
        for number in range(10):
            await (t.store, other)[number % 2].put(t.key("a"), b"%d" % number)
        events = await take(mine, 10)
        assert [event.kv.value for event in events] == [b"%d" % number for number in range(10)]
        assert await take(theirs, 10) == events


@claim()
async def a_large_transaction_arrives_whole(t: Trial) -> None:
    keys = [t.key(f"{number:03}") for number in range(MAX_OPERATIONS)]
    async with t.store.watch(t.prefix) as watch:
        await t.store.txn([], [Put(key, b"v" * 8_000) for key in keys])
        events = await take(watch, MAX_OPERATIONS)
    assert [event.kv.key for event in events] == keys
    assert all(event.kv.value == b"v" * 8_000 for event in events)


@claim()
async def a_delete_of_thousands_of_keys_arrives_whole(t: Trial) -> None:
    keys = [t.key(f"{number:04}") for number in range(5_000)]
    for start in range(0, len(keys), MAX_OPERATIONS):
        await t.store.txn([], [Put(key, b"") for key in keys[start : start + MAX_OPERATIONS]])
    before = await t.revision()
    async with t.store.watch(t.prefix) as watch:
        assert await t.store.delete_prefix(t.prefix) == 5_000
        events = await take(watch, 5_000)
    assert [event.kv.key for event in events] == keys
    assert {(event.type, event.kv.mod_revision) for event in events} == {("delete", before + 1)}
    async with t.store.watch(t.prefix, start_revision=before + 1) as watch:
        assert await take(watch, 5_000) == events


@claim()
async def a_long_past_is_read_whole_and_joins_the_present(t: Trial) -> None:
    writer = await t.second()
    start = await t.revision() + 1
    for number in range(20):
        await t.store.txn([], [Put(t.key(f"{index:03}"), b"%d" % number) for index in range(100)])

    async def write() -> None:
        for number in range(50):
            await writer.put(t.key("live"), b"%d" % number)

    async with t.store.watch(t.prefix, start_revision=start) as watch:
        _, events = await asyncio.gather(write(), take(watch, 2_050))
    revisions = [event.kv.mod_revision for event in events]
    assert revisions == sorted(revisions)
    assert len({(event.kv.key, event.kv.mod_revision) for event in events}) == 2_050
    live = [event.kv.value for event in events if event.kv.key == t.key("live")]
    assert live == [b"%d" % number for number in range(50)]


@claim()
async def a_reader_that_is_cancelled_and_reads_again_loses_nothing(t: Trial) -> None:
    writer = await t.second()

    async def write() -> None:
        for number in range(150):
            await writer.put(t.key("a"), b"%d" % number)

    async with t.store.watch(t.prefix) as watch:
        writing = asyncio.ensure_future(write())
        seen = await _read_with_cancellations(watch, 150)
        await writing
    assert seen == [b"%d" % number for number in range(150)]


async def _read_with_cancellations(watch: Watch, count: int) -> list[bytes]:
    rng = random.Random(5)
    seen: list[bytes] = []
    async with asyncio.timeout(WITHIN):
        while len(seen) < count:
            reader = asyncio.ensure_future(anext(watch))
            try:
                for _ in range(rng.randrange(6)):
                    await asyncio.sleep(0)
                if rng.random() >= 0.5:
                    await asyncio.wait([reader], timeout=0.002)
            finally:  # also when time is up: a reader that is left behind fails later, in the middle of something else
                reader.cancel()
                await asyncio.wait([reader])
            if not reader.cancelled():
                seen.append(reader.result().kv.value)
    return seen


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
