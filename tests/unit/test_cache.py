"""A family of keys in memory, kept up by a watch: nothing is missed, nothing comes back."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from dose import dose

from hostler.drivers.store.faulty import FaultyStore
from hostler.drivers.store.memory import MemoryStore
from hostler.errors import Closed, Unavailable
from hostler.keys.cache import Cache
from hostler.keys.families import COMMAND, MEMBER
from hostler.kit.virtual_loop import VirtualClock, run_virtual
from hostler.model.inventory import Capacity
from hostler.model.node import Lifecycle, NodeRecord, VmCommand
from hostler.model.vm import VmSpec
from hostler.ports.store import DeletePrefix, Put

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


def node(name: str = "a", cpus: int = 1) -> NodeRecord:
    return NodeRecord(
        node=name, lifecycle=Lifecycle.JOINING, capacity=Capacity(cpus=cpus, memory_mib=1), registered_at=0.0
    )


class Scene:
    def __init__(self, store: FaultyStore, bare: MemoryStore, mirror: Cache[NodeRecord], clock: VirtualClock) -> None:
        self.store, self.bare, self.mirror, self.clock = store, bare, mirror, clock
        self.told: list[str] = []
        mirror.listen(self.told.append)

    async def put(self, name: str, cpus: int = 1) -> int:
        return await self.bare.put(MEMBER.fill(node=name), MEMBER.encode(node(name, cpus)))

    async def truth(self) -> dict[str, NodeRecord]:
        listing = await MEMBER.list(self.bare)
        return {entry.key: entry.value for entry in listing.entries}

    def held(self) -> dict[str, NodeRecord]:
        return {key: entry.value for key, entry in self.mirror.entries.items()}


@asynccontextmanager
async def scene(seed: int = 0, **memory: Any) -> AsyncIterator[Scene]:
    clock = VirtualClock()
    bare = MemoryStore(clock=clock, rng=random.Random(seed), **memory)
    store = FaultyStore(bare, random.Random(seed), clock=clock)
    async with store:
        mirror = Cache(store, MEMBER, clock=clock, rng=random.Random(seed))
        it = Scene(store, bare, mirror, clock)
        running = asyncio.create_task(mirror.run(), name="mirror")
        try:
            yield it
        finally:
            running.cancel()
            await asyncio.wait((running,))


def virtual(main: Callable[[], Awaitable[None]], seed: int = 0) -> None:
    run_virtual(main, seed=seed)


def test_what_stood_before_and_what_comes_after_is_in_it() -> None:
    async def main() -> None:
        async with scene() as it:
            await it.put("a")
            await it.mirror.ready()
            assert it.mirror.get(node="a") is not None
            revision = await it.put("b", 2)
            await it.mirror.reached(revision)
            assert it.held() == await it.truth()
            await it.bare.delete(MEMBER.fill(node="a"))
            await asyncio.sleep(0.1)
            assert it.mirror.get(node="a") is None
            assert it.told == [MEMBER.fill(node=name) for name in ("a", "b", "a")]

    virtual(main)


def test_nobody_is_woken_before_what_they_wait_for_and_who_gave_up_is_forgotten() -> None:
    async def main() -> None:
        async with scene() as it:
            await it.mirror.ready()
            first = await it.put("a") + 1
            waiting = [asyncio.create_task(it.mirror.reached(first + more)) for more in (3, 1, 2, 1)]
            gone = asyncio.create_task(it.mirror.reached(first + 10))
            await asyncio.sleep(0)
            woken: list[int] = []
            for index, task in enumerate(waiting):
                task.add_done_callback(lambda _, index=index: woken.append(index))  # type: ignore[misc]
            for done in ([], [1, 3], [1, 3, 2], [1, 3, 2, 0]):
                await it.put("a")
                await asyncio.sleep(0.1)
                assert woken == done
            gone.cancel()
            await asyncio.wait((gone,))
            assert not it.mirror._waiting

    virtual(main)


@pytest.mark.parametrize("seed", range(10))
def test_who_waits_for_a_revision_sees_every_event_of_its_transaction(seed: int) -> None:
    async def main() -> None:
        async with scene(seed) as it:
            await it.mirror.ready()
            names = [f"n{number}" for number in range(20)]
            puts = [Put(MEMBER.fill(node=name), MEMBER.encode(node(name))) for name in names]
            result = await it.bare.txn([], puts)
            await it.mirror.reached(result.revision)
            assert len(it.mirror.entries) == 20
            result = await it.bare.txn([], [DeletePrefix(MEMBER.prefix())])
            await it.mirror.reached(result.revision)
            assert not it.mirror.entries

    virtual(main, seed)


def test_a_refresh_that_ends_between_two_events_of_a_transaction_loses_neither() -> None:
    async def main() -> None:
        async with scene() as it:
            await it.mirror.ready()
            names = [f"n{number}" for number in range(5)]
            for _ in range(20):
                it.store.script("range", "slow")
                refresh = asyncio.create_task(it.mirror.refresh())
                await asyncio.sleep(0.2)
                await it.bare.txn([], [Put(MEMBER.fill(node=name), MEMBER.encode(node(name))) for name in names])
                await refresh
                await asyncio.sleep(1.0)
                assert it.held() == await it.truth()
                await it.bare.txn([], [DeletePrefix(MEMBER.prefix())])

    virtual(main)


def test_a_refresh_has_what_was_written_before_it_even_if_the_watch_is_late() -> None:
    async def main() -> None:
        async with scene() as it:
            await it.mirror.ready()
            it.store.faults.slow, it.store.faults.slowest = 1.0, 50.0
            await it.put("a")
            await it.bare.delete(MEMBER.fill(node="a"))
            await it.put("b")
            await it.mirror.refresh()
            assert it.held() == await it.truth()
            assert set(it.held()) == {MEMBER.fill(node="b")}
            told = len(it.told)
            await asyncio.sleep(300.0)
            assert it.held() == await it.truth()
            assert len(it.told) == told, "late events of what the listing had are told twice"

    virtual(main)


def test_a_listing_that_is_overtaken_by_the_watch_does_not_take_it_back() -> None:
    async def main() -> None:
        async with scene() as it:
            await it.mirror.ready()
            for number in range(1, 30):  # half of them are slow after the range was read
                it.store.script("range", "slow")
                refresh = asyncio.create_task(it.mirror.refresh())
                await asyncio.sleep(0.01)
                revision = await it.put("a", number)
                await it.mirror.reached(revision)
                await refresh
                entry = it.mirror.get(node="a")
                assert entry is not None
                assert entry.value.capacity.cpus == number

    virtual(main)


def test_missed_events_are_listed_and_what_changed_is_told() -> None:
    async def main() -> None:
        async with scene() as it:
            for name in ("a", "b", "c"):
                await it.put(name)
            await it.mirror.ready()
            it.told.clear()
            it.store.script("event", "lagged")
            await it.put("b", 7)
            await it.bare.delete(MEMBER.fill(node="c"))
            await asyncio.sleep(1.0)
            assert it.held() == await it.truth()
            assert set(it.told) == {MEMBER.fill(node="b"), MEMBER.fill(node="c")}

    virtual(main)


def test_a_watch_that_always_ends_does_not_stop_time() -> None:
    async def main() -> None:
        async with scene() as it:
            await it.mirror.ready()
            it.store.faults.lagged = 1.0
            for number in range(1, 20):
                await it.put("a", number)
                await asyncio.sleep(0.5)
            it.store.faults.lagged = 0.0
            await asyncio.sleep(2.0)
            assert it.held() == await it.truth()

    virtual(main)


def test_an_outage_leaves_what_there_is_and_ends_with_what_there_is_now() -> None:
    async def main() -> None:
        async with scene() as it:
            await it.put("a")
            await it.mirror.ready()
            it.store.down()
            await it.put("b")
            with pytest.raises(Unavailable):
                await it.mirror.refresh()
            await asyncio.sleep(60.0)
            assert set(it.held()) == {MEMBER.fill(node="a")}
            it.store.up()
            await asyncio.sleep(2.0)
            assert it.held() == await it.truth()

    virtual(main)


def test_a_store_that_is_away_at_first_is_listed_when_it_comes() -> None:
    async def main() -> None:
        async with scene() as it:
            it.store.down()
            await it.put("a")
            await asyncio.sleep(30.0)
            assert it.mirror.revision == 0
            it.store.up()
            await it.mirror.ready()
            assert it.held() == await it.truth()

    virtual(main)


def test_a_listing_that_is_compacted_between_two_pages_starts_again() -> None:
    async def main() -> None:
        async with scene() as it:
            await it.mirror.ready()
            for number in range(700):
                await it.put(f"n{number}")

            ranged, compactions = it.bare.range, 0

            async def compacted_under_it(prefix: str, **options: Any) -> Any:
                nonlocal compactions
                if options.get("after") is not None and compactions < 3:
                    compactions += 1
                    await it.bare.compact(await it.put("n1", compactions))
                return await ranged(prefix, **options)

            it.bare.range = compacted_under_it  # type: ignore[method-assign, assignment]
            await it.mirror.refresh()
            assert compactions == 3
            assert it.held() == await it.truth()

    virtual(main)


def test_a_store_that_was_put_back_to_an_older_state_is_believed() -> None:
    async def main() -> None:
        clock = VirtualClock()
        async with MemoryStore(clock=clock) as new, MemoryStore(clock=clock) as old:
            for number in range(10):
                await new.put(MEMBER.fill(node=f"n{number}"), MEMBER.encode(node(f"n{number}")))
            await old.put(MEMBER.fill(node="n1"), MEMBER.encode(node("n1", 9)))
            mirror = Cache(new, MEMBER, clock=clock)
            told: list[str] = []
            await mirror.refresh()
            mirror.listen(told.append)
            mirror._store = old
            await mirror.refresh()
            assert {entry.value.capacity.cpus for entry in mirror.entries.values()} == {9}
            assert len(told) == 10
            assert mirror.revision == old.current_revision(), "a watch from there on would miss what comes"

    virtual(main)


def test_what_cannot_be_read_is_kept_apart_and_told() -> None:
    async def main() -> None:
        async with scene() as it:
            await it.put("a")
            await it.mirror.ready()
            key = MEMBER.fill(node="a")
            await it.bare.put(key, b"{")
            await asyncio.sleep(0.1)
            assert (key in it.mirror.entries, key in it.mirror.unreadable) == (False, True)
            it.told.clear()
            await it.mirror.refresh()
            assert it.told == []
            it.store.down()
            await it.bare.delete(key)
            it.store.up()
            await it.mirror.refresh()
            assert it.told == [key]
            assert not it.mirror.unreadable

    virtual(main)


def test_only_the_part_under_its_leading_parts_is_in_it() -> None:
    async def main() -> None:
        clock = VirtualClock()
        async with MemoryStore(clock=clock) as store:
            mirror = Cache(store, COMMAND, clock=clock, node="a")
            command = VmCommand(org="o", project="p", vm="v", spec=VmSpec(cpus=1, memory_mib=1))
            for name in ("a", "ab"):
                await store.put(COMMAND.fill(node=name, vm="v"), COMMAND.encode(command))
            running = asyncio.create_task(mirror.run())
            await mirror.ready()
            assert list(mirror.entries) == [COMMAND.fill(node="a", vm="v")]
            revision = await store.put(
                COMMAND.fill(node="a", vm="v"), COMMAND.encode(msgspec.structs.replace(command, resets=1))
            )
            await store.put(COMMAND.fill(node="ab", vm="w"), COMMAND.encode(command))
            await mirror.reached(revision)
            assert [entry.value.resets for entry in mirror.entries.values()] == [1]
            running.cancel()
            await asyncio.wait((running,))

    virtual(main)


def test_a_store_that_is_closed_ends_it() -> None:
    async def main() -> None:
        clock = VirtualClock()
        store = MemoryStore(clock=clock)
        async with store:
            mirror = Cache(store, MEMBER, clock=clock)
            running = asyncio.create_task(mirror.run())
            await mirror.ready()
        with pytest.raises(Closed):
            await running

    virtual(main)


@pytest.mark.parametrize("seed", range(dose(test=20, full=1000)))
def test_whatever_goes_wrong_it_ends_up_as_the_store_is(seed: int) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        async with scene(seed, history=rng.choice((3, 50, 1000)), backlog=rng.choice((2, 1000))) as it:
            follower: dict[str, int] = {}

            def follow(key: str) -> None:
                entry = it.mirror.entries.get(key)
                if entry is None:
                    follower.pop(key, None)
                else:
                    follower[key] = entry.mod_revision

            it.mirror.listen(follow)
            faults = it.store.faults
            for _ in range(150):
                faults.lagged, faults.compacted = rng.choice((0.0, 0.3)), rng.choice((0.0, 0.1))
                faults.slow, faults.unavailable = rng.choice((0.0, 0.5)), rng.choice((0.0, 0.3))
                chance, before = rng.random(), it.mirror.revision
                names = [f"n{rng.randrange(6)}" for _ in range(rng.randrange(1, 4))]
                if chance < 0.5:
                    puts = [Put(MEMBER.fill(node=name), MEMBER.encode(node(name))) for name in set(names)]
                    await it.bare.txn([], puts)
                elif chance < 0.7:
                    await it.bare.delete(MEMBER.fill(node=names[0]))
                elif chance < 0.8:
                    await it.put("other")
                elif chance < 0.9:
                    present = it.bare.current_revision()
                    try:
                        await it.mirror.refresh()
                    except Unavailable:
                        continue
                    assert it.mirror.revision >= present
                else:
                    await asyncio.sleep(rng.uniform(0.0, 2.0))
                assert it.mirror.revision >= before
            faults.lagged = faults.compacted = faults.slow = faults.unavailable = 0.0
            await it.put("last")
            await asyncio.sleep(10.0)
            assert it.held() == await it.truth()
            assert follower == {key: entry.mod_revision for key, entry in it.mirror.entries.items()}

    virtual(main, seed)
