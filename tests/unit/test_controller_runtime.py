"""The loop of controllers: own writes first, read again after a conflict, resolve the unknown, end with the term."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from hostler.drivers.store.memory import MemoryStore
from hostler.engine.runtime.controller import TRIES, Attempt, BatchController, SnapshotController
from hostler.engine.runtime.env import ControllerEnv
from hostler.engine.runtime.guarded_writer import Txn, Why
from hostler.errors import Conflict, LeadershipLost, Unavailable, Uncertain
from hostler.keys.cache import Cache
from hostler.keys.entry import Entry
from hostler.keys.families import NAME
from hostler.kit.virtual_loop import VirtualClock, run_virtual
from hostler.ports.store import Put, Version

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

LEADER = "/leader"
MOST = 3
"""The value up to which the controllers of these tests count each name."""


class Led:
    """A leader while the record at `LEADER` exists."""

    fence = 7

    @property
    def leadership(self) -> Led:
        return self

    def check(self) -> None:
        pass

    def guard(self) -> Any:
        return Version(LEADER) > 0


class Lossy(MemoryStore):
    """A store that loses answers: to the next `lost` writes, which were made; `away`: nothing is answered or done."""

    lost = 0
    away = False

    async def txn(self, when: Any, then: Any, otherwise: Any = ()) -> Any:
        if self.away:
            raise Unavailable("away")
        result = await super().txn(when, then, otherwise)
        if then and self.lost:
            self.lost -= 1
            raise Uncertain("lost")
        return result


class Seen(msgspec.Struct, frozen=True):
    entry: Entry[str] | None
    unreadable: bool = False


def counted(entry: Entry[str] | None) -> Txn | None:
    """Return the transaction that counts one further; None: it is done. A record is the number as text."""
    if entry is None or int(entry.value) >= MOST:
        return None
    return Txn([NAME.unchanged(entry)], [Put(entry.key, NAME.encode(str(int(entry.value) + 1)))])


WHY = Why(what="counted", why="it is less than it should be")


class Snapshots(SnapshotController[Seen]):
    name = "snapshots"
    pass_every = 1000.0

    def __init__(self, store: Lossy, clock: VirtualClock) -> None:
        self.names = Cache(store, NAME, clock=clock, rng=random.Random(1))
        env = ControllerEnv(store=store, clock=clock, rng=random.Random(1), tell=print)  # type: ignore[arg-type]
        super().__init__(env, mirrors=(self.names,))
        self.decided: list[str] = []
        self.reads = 0
        self.disturb: Callable[[], Awaitable[None]] | None = None

    async def read_caches(self) -> None:
        await self.names.refresh()

    async def begin(self) -> None:
        self.follow(self.names.listen(lambda key: self._queue.add(NAME.parse(key)["name"])))

    async def resync(self, *, first: bool) -> None:
        assert first
        for entry in self.names.entries.values():
            self._queue.add(entry.parts["name"])

    def works(self) -> Any:
        return {"cache": self.names.run()}

    def snapshot(self, name: str) -> Seen:
        return Seen(self.names.get(org="o", project="p", name=name), name == "unreadable")

    async def read_snapshot(self, name: str, last: Seen | None) -> Seen:  # noqa: ARG002 - the name is enough here
        self.reads += 1
        entry = await NAME.get(self._store, org="o", project="p", name=name)
        self._writing.settle(name, entry)
        return Seen(entry)

    async def step(self, seen: Seen, attempt: Attempt) -> bool:
        assert attempt.number < TRIES
        txn = counted(seen.entry)
        if txn is None or seen.entry is None:
            return True
        self.decided.append(seen.entry.value)
        if self.disturb is not None:
            await self.disturb()
        return await self._writing.commit(seen.entry.parts["name"], seen.entry.key, txn, WHY) is not None


class Batches(BatchController):
    name = "batches"
    pass_every = 1000.0
    rounds = 100

    def __init__(self, store: Lossy, clock: VirtualClock) -> None:
        self.names = Cache(store, NAME, clock=clock, rng=random.Random(1))
        env = ControllerEnv(store=store, clock=clock, rng=random.Random(1), tell=print)  # type: ignore[arg-type]
        super().__init__(env, mirrors=(self.names,))
        self.decided: list[str] = []

    async def read_caches(self) -> None:
        await self.names.refresh()

    async def begin(self) -> None:
        pass

    async def resync(self, *, first: bool) -> None:
        assert first
        for entry in self.names.entries.values():
            self._queue.add(entry.parts["name"])

    def works(self) -> Any:
        return {"cache": self.names.run()}

    async def step(self, name: str) -> bool:
        entry = self.names.get(org="o", project="p", name=name)
        txn = counted(entry)
        if txn is None or entry is None:
            return False
        self.decided.append(entry.value)
        await self._writing.write(name, entry.key, txn, WHY)
        return True


class Place:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = Lossy(clock=self.clock)

    async def put(self, name: str, value: str) -> None:
        await self.store.put(NAME.fill(org="o", project="p", name=name), NAME.encode(value))

    async def value(self, name: str) -> str:
        entry = await NAME.get(self.store, org="o", project="p", name=name)
        assert entry is not None
        return entry.value

    @asynccontextmanager
    async def led(self, controller: Snapshots | Batches) -> AsyncIterator[asyncio.Task[None]]:
        await controller.start(Led())  # type: ignore[arg-type]
        running = asyncio.create_task(controller.run(), name="controller")
        try:
            yield running
        finally:
            running.cancel()
            await asyncio.wait((running,))
            await controller.stop()


def play(story: Callable[[Place], Awaitable[None]]) -> None:
    async def main() -> None:
        place = Place()
        async with place.store:
            await place.store.put(LEADER, b"me")
            await story(place)

    run_virtual(main)


@pytest.mark.parametrize("kind", [Snapshots, Batches])
@pytest.mark.parametrize("lost", [0, 1, 3])
def test_each_step_is_taken_once_also_if_answers_are_lost(kind: Any, lost: int) -> None:
    async def story(place: Place) -> None:
        await place.put("a", "0")
        place.store.lost = lost
        controller = kind(place.store, place.clock)
        async with place.led(controller):
            await asyncio.sleep(60)
        assert await place.value("a") == str(MOST)
        entry = await NAME.get(place.store, org="o", project="p", name="a")
        assert entry is not None
        assert entry.version == 1 + MOST
        assert controller.decided == ["0", "1", "2"]

    play(story)


def test_a_decision_from_an_old_cache_writes_nothing_and_is_made_again_from_the_store() -> None:
    async def story(place: Place) -> None:
        await place.put("a", "0")
        controller = Snapshots(place.store, place.clock)

        async def other() -> None:
            controller.disturb = None
            await place.put("a", "2")

        controller.disturb = other
        async with place.led(controller):
            await asyncio.sleep(10)
        assert controller.decided == ["0", "2"]
        assert controller.reads == 1
        assert controller.counters["conflicts"] == 1

    play(story)


def test_a_name_that_changes_all_the_time_waits_and_the_others_go_on() -> None:
    async def story(place: Place) -> None:
        await place.put("a", "0")
        controller = Snapshots(place.store, place.clock)

        async def other() -> None:
            await place.put("a", "0")

        controller.disturb = other
        await controller.start(Led())  # type: ignore[arg-type]
        with pytest.raises(Conflict):
            await controller.reconcile("a")
        assert controller.decided == ["0"] * TRIES
        await controller.stop()

    play(story)


def test_nothing_is_decided_about_a_record_that_cannot_be_read() -> None:
    async def story(place: Place) -> None:
        await place.put("unreadable", "0")
        controller = Snapshots(place.store, place.clock)
        async with place.led(controller):
            await asyncio.sleep(10)
        assert controller.decided == []

    play(story)


@pytest.mark.parametrize("kind", [Snapshots, Batches])
def test_a_lost_leadership_ends_it_and_nothing_is_written(kind: Any) -> None:
    async def story(place: Place) -> None:
        await place.put("a", "0")
        controller = kind(place.store, place.clock)
        await place.store.delete(LEADER)
        async with place.led(controller) as running:
            await asyncio.wait((running,), timeout=10)
            assert isinstance(running.exception(), LeadershipLost)
        assert await place.value("a") == "0"

    play(story)


def test_a_store_that_is_away_at_the_start_is_waited_for_and_later_work_is_retried() -> None:
    async def story(place: Place) -> None:
        await place.put("a", "0")
        controller = Snapshots(place.store, place.clock)
        refresh = controller.names.refresh
        tries = 0

        async def away() -> None:
            nonlocal tries
            tries += 1
            if tries < 3:
                raise Unavailable("away")
            await refresh()

        controller.names.refresh = away  # type: ignore[method-assign]
        place.store.away = True
        async with place.led(controller):
            await asyncio.sleep(5)
            assert await place.value("a") == "0"
            place.store.away = False
            await asyncio.sleep(60)
        assert tries == 3
        assert await place.value("a") == str(MOST)
        assert controller.counters["retries"] > 1

    play(story)


def test_after_its_stop_a_controller_follows_nothing() -> None:
    async def story(place: Place) -> None:
        controller = Snapshots(place.store, place.clock)
        async with place.led(controller):
            pass
        await place.put("a", "0")
        await controller.names.refresh()
        assert len(controller._queue) == 0

    play(story)
