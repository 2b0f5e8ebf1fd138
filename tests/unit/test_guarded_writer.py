"""The guarded writer: every write carries the guard, unknown outcomes are resolved, and caches have to catch up."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from hostler.drivers.store.memory import MemoryStore
from hostler.engine.decision_recorder import Tracer
from hostler.engine.runtime.guarded_writer import ConditionFailed, GuardedWriter, Txn, Why
from hostler.errors import LeadershipLost, Uncertain
from hostler.keys.cache import Cache
from hostler.keys.families import NAME, TRACE
from hostler.kit.virtual_loop import VirtualClock, run_virtual
from hostler.ports.store import Delete, Get, KeyValue, Put, Version

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

LEADER = "/leader"
A, B = (NAME.fill(org="o", project="p", name=name) for name in "ab")
WHY = Why(what="named", why="because")


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


class Deaf:
    """A store that loses the answers to the next `lost` transactions: they were made, or (`early`) were not."""

    def __init__(self, store: MemoryStore) -> None:
        self.store, self.lost, self.early = store, 0, False
        self.sent: list[Any] = []

    async def txn(self, when: Any, then: Any, otherwise: Any = ()) -> Any:
        self.sent.append((list(when), list(then)))
        if self.lost:
            self.lost -= 1
            if not self.early:
                await self.store.txn(when, then, otherwise)
            raise Uncertain("lost")
        return await self.store.txn(when, then, otherwise)


class Place:
    """A writer, its cache, which is refreshed by hand, and its store."""

    def __init__(self, *, learns: bool = False) -> None:
        self.clock = VirtualClock()
        self.store = MemoryStore(clock=self.clock)
        self.deaf = Deaf(self.store)
        self.names = Cache(self.store, NAME, clock=self.clock, rng=random.Random(1))
        self.counters: dict[str, int] = {}
        tracer = Tracer(self.clock, lambda: "id", "tester")
        self.writer = GuardedWriter(
            "tests",
            self.deaf,
            (self.names,),
            self.counters,
            tracer,
            clock=self.clock,
            learns=learns,  # type: ignore[arg-type]
        )
        self.writer.standing = Led()  # type: ignore[assignment]

    def put(self, key: str = A, value: bytes = b'"1"') -> Txn:
        return Txn([Version(key) == 0], [Put(key, value)])

    async def write(self, txn: Txn, **options: Any) -> int:
        return await self.writer.write("n", A, txn, WHY, **options)


def play(story: Callable[[Place], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        place = Place(**options)
        async with place.store:
            await place.store.put(LEADER, b"me")
            await place.names.refresh()
            await story(place)

    run_virtual(main)


def test_a_write_carries_the_guard_and_its_decision_in_one_transaction() -> None:
    async def story(place: Place) -> None:
        revision = await place.write(place.put())
        ((when, then),) = place.deaf.sent
        assert when == [Version(LEADER) > 0, Version(A) == 0]
        assert then[0] == Put(A, b'"1"')
        trace = TRACE.decode(then[1].value)
        assert (trace.what, trace.why, trace.fence, trace.subject) == ("named", "because", 7, A)
        found = await place.store.get(A)
        assert found is not None
        assert found.mod_revision == revision
        assert place.counters == {"named": 1}

    play(story)


@pytest.mark.parametrize("how", ["write", "commit", "resolve"])
def test_without_the_leadership_nothing_is_written(how: str) -> None:
    async def story(place: Place) -> None:
        if how == "resolve":
            place.deaf.lost, place.deaf.early = 1, True
            with pytest.raises(Uncertain):
                await place.write(place.put())
        await place.store.delete(LEADER)
        with pytest.raises(LeadershipLost):
            await (
                place.writer.resolve("n") if how == "resolve" else getattr(place.writer, how)("n", A, place.put(), WHY)
            )
        assert await place.store.get(A) is None
        assert place.counters == {}

    play(story)


def test_a_condition_that_does_not_hold_is_told_with_what_was_asked_for_then() -> None:
    async def story(place: Place) -> None:
        await place.store.put(A, b'"0"')
        with pytest.raises(ConditionFailed) as failed:
            await place.write(place.put(), otherwise=[Get(B), Get(A)])
        absent, there = failed.value.responses
        assert absent is None
        assert isinstance(there, KeyValue)
        assert there.value == b'"0"'
        assert await place.writer.commit("n", A, place.put(), WHY) is None
        assert place.counters == {"conflicts": 1}
        assert not place.writer.in_doubt("n")
        assert not place.writer.is_behind("n")

    play(story)


def test_the_caches_have_to_contain_a_write_before_the_next_decision_about_its_name() -> None:
    async def story(place: Place) -> None:
        await place.write(place.put())
        assert place.writer.is_behind("n")
        assert not place.writer.is_behind("another")
        assert not await place.writer.caught_up("n")
        catching_up = asyncio.create_task(place.writer.caught_up("n"), name="catching up")
        await asyncio.sleep(0.5)
        assert not catching_up.done()
        await place.names.refresh()
        assert await catching_up
        assert not place.writer.is_behind("n")
        await place.write(Txn([], [Delete(A)]))
        assert place.writer.is_behind("n")
        await place.names.refresh()
        assert not place.writer.is_behind("n")

    play(story)


def test_a_cache_that_has_only_the_first_event_of_a_revision_is_behind() -> None:
    async def story(place: Place) -> None:
        await place.write(Txn([], [Put(A, b'"1"'), Put(B, b'"2"')]))
        await place.names.refresh()
        last = place.names.entries.pop(B)
        assert place.names.revision >= last.mod_revision
        assert place.writer.is_behind("n")
        place.names.entries[B] = last
        assert not place.writer.is_behind("n")

    play(story)


@pytest.mark.parametrize("early", [True, False])
def test_an_unknown_outcome_is_resolved_by_sending_the_same_write_again(early: bool) -> None:
    async def story(place: Place) -> None:
        place.deaf.lost, place.deaf.early = 2, early
        with pytest.raises(Uncertain):
            await place.write(place.put())
        assert place.writer.in_doubt("n")
        assert place.writer.doubtful_keys("n")[0] == A
        with pytest.raises(Uncertain):
            await place.writer.resolve("n")
        assert place.writer.in_doubt("n")
        if early:
            await place.writer.resolve("n")
        else:
            with pytest.raises(ConditionFailed):
                await place.writer.resolve("n")
        assert not place.writer.in_doubt("n")
        found = await place.store.get(A)
        assert found is not None
        assert found.version == 1
        assert len((await place.store.range(TRACE.prefix())).items) == 1

    play(story)


def test_an_unknown_outcome_is_settled_by_a_read_which_the_caches_have_to_contain() -> None:
    async def story(place: Place) -> None:
        place.deaf.lost = 1
        with pytest.raises(Uncertain):
            await place.write(place.put())
        assert not place.writer.is_behind("n")
        place.writer.settle("n", await NAME.get(place.store, org="o", project="p", name="a"))
        assert not place.writer.in_doubt("n")
        assert place.writer.is_behind("n")
        await place.names.refresh()
        assert not place.writer.is_behind("n")

    play(story)


def test_a_writer_that_learns_waits_for_what_it_found_instead() -> None:
    async def story(place: Place) -> None:
        await place.store.put(A, b'"0"')
        await place.names.refresh()
        await place.store.delete(A)
        await place.store.put(B, b'"0"')
        with pytest.raises(ConditionFailed):
            await place.write(Txn([Version(A) == 1, Version(B) == 0], [Put(A, b'"1"')]))
        assert place.writer.is_behind("n")
        entry = place.names.entries.pop(A)
        assert place.writer.is_behind("n")
        place.names.entries[A] = entry
        await place.names.refresh()
        assert not place.writer.is_behind("n")

    play(story, learns=True)


def test_a_write_for_no_name_leaves_nothing_behind() -> None:
    async def story(place: Place) -> None:
        await place.writer.write("", A, place.put(), None)
        place.deaf.lost = 1
        with pytest.raises(Uncertain):
            await place.writer.write("", B, place.put(B), WHY)
        assert not place.writer.in_doubt("")
        assert not place.writer.is_behind("")
        assert place.counters == {}

    play(story)
