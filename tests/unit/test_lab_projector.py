"""What is shown of labs: only what changed, never something older, and all of it again after a loss."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from hostler.drivers.inbox.memory import MemoryLabRecords, MemoryRedis
from hostler.drivers.store.memory import MemoryStore
from hostler.engine.labs import state_machine
from hostler.engine.labs.projector import BATCH, LabProjector
from hostler.engine.labs.state_machine import LabStart
from hostler.engine.view import View
from hostler.errors import Unavailable
from hostler.keys.lab import LAB
from hostler.kit.virtual_loop import VirtualClock, run_virtual
from hostler.model.lab import Lab, LabCatalogue, LabEvent, LabNews, LabPhase, LabUser
from hostler.ports.inbox import Published

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable


class CountedBoard(MemoryLabRecords):
    """Remembers what it was asked."""

    def __init__(self, door: MemoryRedis) -> None:
        super().__init__(door, faults=self._met)
        self._open = True
        self.asked: list[tuple[str, Any]] = []
        self.fault: Callable[[str], None] | None = None

    async def _met(self, when: str, verb: str) -> None:
        if when == "before" and self.fault is not None:
            self.fault(verb)

    async def publish(self, changes: Any) -> int:
        self.asked.append(("publish", [change.user for change in changes]))
        return await super().publish(changes)

    async def refresh(self, users: Any) -> Any:
        self.asked.append(("refresh", list(users)))
        return await super().refresh(users)

    async def withdraw(self, user: str, revision: int) -> bool:
        self.asked.append(("withdraw", user))
        return await super().withdraw(user, revision)

    def published(self) -> list[str]:
        users = [user for verb, users in self.asked if verb == "publish" for user in users]
        self.asked.clear()
        return users


class Scene:
    def __init__(self, store: MemoryStore, clock: VirtualClock) -> None:
        self.store, self.clock = store, clock
        self.door = MemoryRedis()
        self.board = CountedBoard(self.door)
        self.told: list[str] = []
        self.view = View(store, clock=clock, rng=random.Random(1))
        self.projector = LabProjector(self.board, self.view, clock=clock, rng=random.Random(1), tell=self.told.append)

    async def put(self, user: str, phase: LabPhase | None = LabPhase.RUNNING, **changes: Any) -> LabUser:
        fields: dict[str, Any] = {"lab_id": 5, "generation": 1, "requested_at": 1.0, "life": 60.0, **changes}
        news = (LabNews(number=1, at=0.0, event=LabEvent.REQUESTED),)
        record = LabUser(
            user=user, changed_at=0.0, news=news, lab=None if phase is None else Lab(phase=phase, **fields)
        )
        await self.store.put(LAB.fill(user=user), LAB.encode(record))
        return record


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    clock = VirtualClock()
    async with MemoryStore(clock=clock) as store:
        one = Scene(store, clock)
        view = asyncio.create_task(one.view.run())
        await one.view.ready()
        await one.projector.start(None)  # type: ignore[arg-type]
        running = asyncio.create_task(one.projector.run())
        try:
            await asyncio.sleep(0.1)
            yield one
            assert not running.done(), running
        finally:
            await one.projector.stop()
            for task in (view, running):
                task.cancel()
            await asyncio.gather(view, running, return_exceptions=True)


def play(story: Callable[[Scene], Awaitable[None]]) -> None:
    async def main() -> None:
        async with scene() as one:
            await story(one)

    run_virtual(main)


def test_only_who_changed_is_shown_and_soon() -> None:
    async def story(one: Scene) -> None:
        for number in range(3):
            await one.put(f"u{number}")
        await asyncio.sleep(0.1)
        assert sorted(one.door.records) == ["u0", "u1", "u2"]
        one.board.asked.clear()
        await asyncio.sleep(290)
        assert one.board.published() == []
        record = await one.put("u1", available=True, machine_runs=True)
        await asyncio.sleep(0.1)
        assert one.board.published() == ["u1"]
        assert record.lab is not None
        assert one.door.records["u1"] == record.lab.server("u1")

    play(story)


def test_what_another_store_had_shown_is_not_in_the_way() -> None:
    async def story(one: Scene) -> None:
        for user, revision in (("ada", 1_000), ("bob", 1_001), ("cleo", 2)):
            await one.board.publish([Published(user=user, revision=revision, server=None)])
        await one.put("cleo")
        one.door.epoch = "another"
        await asyncio.sleep(2)
        assert one.door.generations.keys() == {"cleo"}
        record = await one.put("ada")
        await asyncio.sleep(0.1)
        assert record.lab is not None
        assert one.door.records["ada"] == record.lab.server("ada")
        assert one.projector.counters["forgotten"] == 2

    play(story)


def test_messages_are_shown_among_the_news() -> None:
    async def story(one: Scene) -> None:
        said = state_machine.message(await one.put("ada"), "ten minutes", now=2.0)
        await one.store.put(LAB.fill(user="ada"), LAB.encode(said))
        await asyncio.sleep(0.1)
        shown = [(news.number, news.event, news.reason) for news in one.door.news["ada"]]
        assert shown == [(1, LabEvent.REQUESTED, ""), (2, LabEvent.MESSAGE, "ten minutes")]
        one.door.epoch = "another"
        await asyncio.sleep(2)
        assert one.projector.counters.get("forgotten", 0) == 0, "what is said is of this store"

    play(story)


def test_what_another_store_had_shown_is_not_in_the_way_of_a_store_that_has_come_as_far() -> None:
    async def story(one: Scene) -> None:
        news = (LabNews(number=9, at=0.0, event=LabEvent.STARTED),)
        ada, bob = await one.put("ada"), await one.put("bob")
        for _ in range(100):
            await one.put("cleo")
        await asyncio.sleep(0.1)
        await one.board.publish([Published(user="ada", revision=50, server=None)])
        await one.board.publish([Published(user="bob", revision=3, server=None, news=news)])
        await one.board.publish([Published(user="dan", revision=4, server=None, news=news)])
        before = dict(one.door.generations)
        one.door.epoch = "another"
        await asyncio.sleep(2)
        assert before["ada"] == 50 < one.view.labs.revision
        assert one.projector.counters["forgotten"] == 3
        for record in (ada, bob):
            assert record.lab is not None
            assert one.door.records[record.user] == record.lab.server(record.user)
        assert [one.door.news.get(user) for user in ("ada", "bob", "dan")] == [[*ada.news], [*bob.news], None]

    play(story)


def test_what_this_store_says_by_now_is_not_forgotten_though_the_mirror_has_not_heard() -> None:
    async def story(one: Scene) -> None:
        await one.put("ada")
        await asyncio.sleep(0.1)
        revision = one.view.labs.revision
        one.view.labs.revision, one.view.labs.entries = 0, {}
        one.door.epoch = "another"
        await asyncio.sleep(2)
        assert one.door.generations == {"ada": revision}
        assert "forgotten" not in one.projector.counters

    play(story)


def test_many_are_shown_in_batches() -> None:
    async def story(one: Scene) -> None:
        one.projector._dirty |= dict.fromkeys(f"nobody{number}" for number in range(BATCH * 2))
        await one.put("ada")
        await asyncio.sleep(2)
        sizes = [len(users) for verb, users in one.board.asked if verb == "publish"]
        assert max(sizes) == BATCH
        assert sum(sizes) == 2 * BATCH + 1

    play(story)


def test_who_waits_is_shown_so_and_who_has_no_lab_is_not_shown() -> None:
    async def story(one: Scene) -> None:
        await one.put("ada", LabPhase.WAITING)
        await asyncio.sleep(0.1)
        assert one.door.waiting == {"ada": 1.0}
        assert one.door.records["ada"].status == "provisioning"
        await one.put("ada", None)
        await asyncio.sleep(0.1)
        assert not one.door.records
        assert not one.door.waiting
        assert one.door.news["ada"]
        await one.put("ada")
        await asyncio.sleep(0.1)
        await one.store.delete(LAB.fill(user="ada"))
        await asyncio.sleep(0.1)
        assert not one.door.records

    play(story)


def test_what_somebody_newer_has_shown_stays() -> None:
    async def story(one: Scene) -> None:
        await one.put("ada")
        await asyncio.sleep(0.1)
        newer = replace(one.door.records["ada"], lab_id=9)
        for user in ("ada", "bob"):
            one.door.records[user], one.door.generations[user] = newer, 10**6
        await one.put("ada")
        await asyncio.sleep(310)
        assert one.door.records == {"ada": newer, "bob": newer}

    play(story)


def test_after_a_new_epoch_all_is_shown_again() -> None:
    async def story(one: Scene) -> None:
        await one.put("ada")
        await one.put("bob", None)
        await asyncio.sleep(0.1)
        one.board.published()
        before = dict(one.door.records), dict(one.door.news)
        one.door.flush()
        await asyncio.sleep(1.2)
        assert sorted(one.board.published()) == ["ada", "bob"]
        assert (one.door.records, one.door.news) == before

    play(story)


def test_while_it_is_out_of_reach_it_is_asked_ever_more_rarely_and_told_of_once() -> None:
    async def story(one: Scene) -> None:
        asked = []

        def fault(verb: str) -> None:
            asked.append(verb)
            raise Unavailable("redis: out of reach")

        await one.put("bob")
        await asyncio.sleep(2)
        one.board.fault = fault
        await one.put("ada")
        await asyncio.sleep(60)
        assert 10 < len(asked) < 50
        assert one.told == ["lab records: redis: out of reach; they are published again once it is back"]
        one.board.fault = None
        one.door.records.clear()  # and whatever happened meanwhile is made good, also if it says it is the same
        await asyncio.sleep(6)
        assert sorted(one.door.records) == ["ada", "bob"]
        assert one.told[-1] == "lab records: published again"

    play(story)


def test_an_error_that_nobody_thought_of_does_not_end_it() -> None:
    async def story(one: Scene) -> None:
        def fault(_: str) -> None:
            raise ZeroDivisionError("what")

        one.board.fault = fault
        await one.put("ada")
        await asyncio.sleep(5)
        one.board.fault = None
        await asyncio.sleep(6)
        assert sorted(one.door.records) == ["ada"]
        assert "ZeroDivisionError: what" in one.told[0]

    play(story)


def test_a_sweep_mends_both_ways_and_leaves_alone_what_nobody_can_read() -> None:
    async def story(one: Scene) -> None:
        for user in ("ada", "bob", "cy", "dee"):
            await one.put(user)
        await asyncio.sleep(0.1)
        good = dict(one.door.records)
        await one.store.put(LAB.fill(user="dee"), b"{")
        del one.door.records["ada"]
        one.door.records["bob"] = replace(good["bob"], address="::1")
        one.door.records["eve"] = good["cy"]
        one.door.records["fay"] = None  # type: ignore[assignment]
        one.board.asked.clear()
        await asyncio.sleep(301)
        assert one.door.records == good
        assert sorted(user for verb, user in one.board.asked if verb == "withdraw") == ["eve", "fay"]
        assert sorted(one.board.published()) == ["ada", "bob"]

    play(story)


def test_the_life_of_what_is_shown_is_renewed_every_hour() -> None:
    async def story(one: Scene) -> None:
        await one.put("ada")
        await one.put("bob", None)
        await asyncio.sleep(3590)
        one.board.asked.clear()
        await asyncio.sleep(320)
        assert [users for verb, users in one.board.asked if verb == "refresh"] == [["ada"]]

    play(story)


def test_a_user_whose_name_cannot_be_shown_does_not_keep_others_from_being_shown() -> None:
    async def story(one: Scene) -> None:
        await one.put("a\u200bb")
        await one.put("ada")
        await asyncio.sleep(1)
        assert sorted(one.door.records) == ["ada"]
        assert not one.told

    play(story)


def test_the_record_is_that_of_the_last_change() -> None:
    """However fast they come, and whatever fails on the way."""

    async def story(one: Scene) -> None:
        rng = random.Random(5)
        calls = iter(range(10**6))

        def fault(_: str) -> None:
            if next(calls) % 3 == 0:
                raise Unavailable("redis: out of reach")

        one.board.fault = fault
        record = None
        for turn in range(200):
            user = f"u{rng.randrange(5)}"
            entry = await LAB.get(one.store, user=user)
            record = state_machine.start(
                None if entry is None else entry.value,
                user,
                LabStart(5, switch=False),
                catalogue=LabCatalogue(),
                now=float(turn),
            )
            if rng.random() < 0.3:
                record = state_machine.stop(record, user, None, now=float(turn))
            await one.store.put(LAB.fill(user=user), LAB.encode(record))
            await asyncio.sleep(rng.random())
        await asyncio.sleep(20)
        for entry in (await LAB.list(one.store)).entries:
            lab, user = entry.value.lab, entry.value.user
            assert one.door.records.get(user) == (None if lab is None else lab.server(user))
            assert one.door.news[user][-1] == entry.value.news[-1]

    play(story)
