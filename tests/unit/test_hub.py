"""Watches: what is delivered, to whom, and what a slow reader is told."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack

import pytest

from hostler.drivers.store.memory import MemoryStore
from hostler.drivers.store.mvcc import Mvcc
from hostler.drivers.store.watch_hub import LocalWatch, WatchHub
from hostler.errors import Closed, Compacted, Invalid, Lagged, Unavailable
from hostler.ports.store import Event, Operation, Put


class World:
    """A store of the least kind: a state and its hub."""

    def __init__(self, backlog: int = 100) -> None:
        self.state = Mvcc()
        self.hub = WatchHub(self, backlog=backlog)
        self.hub.open()

    def do(self, *operations: Operation) -> int:
        _, events = self.state.txn((), operations, ())
        self.hub.publish(self.state.revision, events, key=lambda e: e.kv.key, event=lambda e: e)
        return self.state.revision

    def put(self, key: str, value: bytes = b"") -> int:
        return self.do(Put(key, value))

    def current_revision(self) -> int:
        return self.state.revision

    def compact_revision(self) -> int:
        return self.state.compacted

    def changes(self, prefix: str, start_revision: int, limit: int) -> tuple[list[Event], int]:
        return self.state.changes(prefix, start_revision, limit)


async def take(watch: LocalWatch, count: int) -> list[tuple[str, int]]:
    events = [await asyncio.wait_for(anext(watch), 30) for _ in range(count)]
    return [(event.kv.key, event.kv.mod_revision) for event in events]


async def silent(watch: LocalWatch) -> bool:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(watch), 0.02)
    return True


async def test_a_watch_without_a_start_sees_what_comes_after_it_was_entered() -> None:
    world = World()
    world.put("a")
    async with world.hub.watch("", None) as watch:
        world.put("b")
        assert await take(watch, 1) == [("b", 3)]


async def test_a_watch_sees_its_prefix_and_nothing_else() -> None:
    world = World()
    async with world.hub.watch("/vms/", None) as watch, world.hub.watch("", None) as every:
        for key in ("/vm", "/vms", "/vms/1", "/vmsx", "/vms/"):
            world.put(key)
        assert await take(watch, 2) == [("/vms/1", 4), ("/vms/", 6)]
        assert len(await take(every, 5)) == 5
        assert await silent(watch)


async def test_history_then_live_has_no_gap_and_no_duplicate() -> None:
    world = World(backlog=100_000)
    rng = random.Random(1)
    for _ in range(1_500):
        world.put("k")
    async with world.hub.watch("k", start_revision=2) as watch:
        seen: list[int] = []
        while len(seen) < 4_000:
            for _ in range(rng.randrange(4) if world.state.revision < 4_001 else 0):
                world.put("k")
            seen += [revision for _, revision in await take(watch, 1)]
        assert seen == list(range(2, 4_002))


async def test_a_start_in_the_future_waits_for_it() -> None:
    world = World()
    async with world.hub.watch("", start_revision=4) as watch:
        assert await silent(watch)
        for _ in range(4):
            world.put("a")
        assert await take(watch, 2) == [("a", 4), ("a", 5)]


async def test_a_reader_that_lags_gets_what_waited_and_is_told_where_to_go_on() -> None:
    world = World(backlog=3)
    async with world.hub.watch("", None) as slow, world.hub.watch("", None) as quick:
        for number in range(6):
            world.put(f"{number}")
            assert len(await take(quick, 1)) == 1
        assert await take(slow, 3) == [("0", 2), ("1", 3), ("2", 4)]
        with pytest.raises(Lagged) as error:
            await take(slow, 1)
        with pytest.raises(Lagged):
            await take(slow, 1)
    assert error.value.revision == 5
    async with world.hub.watch("", error.value.revision) as again:
        assert await take(again, 3) == [("3", 5), ("4", 6), ("5", 7)]


async def test_one_large_transaction_alone_never_makes_a_reader_lag() -> None:
    world = World(backlog=3)
    async with world.hub.watch("", None) as watch:
        world.do(*(Put(f"{number:02}", b"") for number in range(50)))
        assert len(await take(watch, 50)) == 50
        world.put("a")
        assert await take(watch, 1) == [("a", 3)]


async def test_a_watch_from_before_the_compaction_is_refused_and_one_overtaken_by_it_ends() -> None:
    world = World()
    for _ in range(2_000):
        world.put("a")
    async with world.hub.watch("", start_revision=2) as watch:
        assert await take(watch, 1) == [("a", 2)]
        world.state.compact(1_900)
        with pytest.raises(Compacted) as error:
            await take(watch, 1_000)
        assert error.value.revision == 1_900
    with pytest.raises(Compacted):
        async with world.hub.watch("", start_revision=1_899):
            pass


async def test_a_reader_that_is_cancelled_loses_nothing() -> None:
    world = World()
    async with world.hub.watch("", None) as watch:
        for number in range(20):
            reader = asyncio.ensure_future(anext(watch))
            await asyncio.sleep(0)
            world.put(f"{number}")
            if number % 2:
                reader.cancel()
                await asyncio.gather(reader, return_exceptions=True)
            else:
                assert (await reader).kv.key == f"{number}"
            if number % 2:
                assert await take(watch, 1) == [(f"{number}", number + 2)]


async def test_closing_ends_every_watch_also_one_that_reads_history() -> None:
    world = World()
    world.put("a")
    async with world.hub.watch("", None) as live, world.hub.watch("", 2) as past:
        reader = asyncio.ensure_future(anext(live))
        await asyncio.sleep(0)
        world.hub.close()
        with pytest.raises(Closed):
            await reader
        with pytest.raises(Closed):
            await take(past, 2)
    with pytest.raises(Closed):
        async with world.hub.watch("", None):
            pass


async def test_a_watch_that_was_left_costs_nothing_any_more() -> None:
    world = World()
    async with world.hub.watch("a", None), world.hub.watch("a", None):
        assert len(world.hub) == 2
    assert (len(world.hub), world.hub._by_prefix, world.hub._odd) == (0, {}, [])


@pytest.mark.parametrize("key", ["/a", "/a/", "/a/b/c", "a", "a/b", "//", "/", "/a/bc"])
async def test_a_watch_is_found_by_every_key_that_begins_with_its_prefix(key: str) -> None:
    world = World()
    prefixes = ["", "/", "//", "a", "a/", "/a", "/a/", "/a/b", "/a/b/", "/a/b/c", "/a/b/c/", "/b/"]
    watches = [world.hub.watch(prefix, None) for prefix in prefixes]
    async with AsyncExitStack() as stack:
        for watch in watches:
            await stack.enter_async_context(watch)
        found = [watch.prefix for watch in world.hub._interested_watches(key)]
        assert sorted(found) == sorted(prefix for prefix in prefixes if key.startswith(prefix))


async def test_a_change_builds_an_event_only_if_somebody_wants_it() -> None:
    world, built = World(), []

    def event(change: str) -> Event:
        built.append(change)
        raise AssertionError

    async with world.hub.watch("/other/", None):
        world.hub.publish(2, ["/a", "/b"], key=lambda change: change, event=event)
    assert built == []


@pytest.mark.parametrize("start", [0, -1, True, "1", 1.5])
async def test_a_start_that_is_no_revision_is_refused(start: object) -> None:
    with pytest.raises(Invalid):
        World().hub.watch("", start)  # type: ignore[arg-type]


async def test_an_outage_while_history_is_read_does_not_end_the_watch() -> None:
    async with MemoryStore() as store:
        await store.put("a", b"1")
        read, outages = store.changes, 2

        def failing(prefix: str, start_revision: int, limit: int) -> tuple[list[Event], int]:
            nonlocal outages
            if outages:
                outages -= 1
                raise Unavailable("history: not now")
            return read(prefix, start_revision, limit)

        store.changes = failing  # type: ignore[method-assign]
        async with store.watch("a", start_revision=1) as watch:
            assert (await asyncio.wait_for(anext(watch), 30)).kv.value == b"1"
        assert not outages
