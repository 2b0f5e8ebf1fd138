"""The worker at the lab door: what it buries, what it waits for, and what it is called."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import pytest
from environment import env_on

from hostler.drivers.inbox.memory import MemoryInbox, MemoryRedis
from hostler.drivers.store.faulty import FaultyStore
from hostler.drivers.store.memory import MemoryStore
from hostler.engine.labs.queue_consumer import Rules
from hostler.engine.labs.worker import RECLAIM_EVERY, TTL, LabWorker
from hostler.errors import Closed, Damaged, Forbidden, Invalid, TooLarge, Unavailable, Uncertain
from hostler.keys.cache import Cache
from hostler.keys.lab import LAB, LAB_WORKER
from hostler.model.lab import NEWS_KEPT, LabCatalogue, LabEvent, LabPhase, LabTemplate, LabUser
from hostler.ports.inbox import Taken
from hostler.testing import VirtualClock, run_virtual

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hostler.ports.inbox import QueueName

T = TypeVar("T")


class Scene:
    """A worker between a store and a door, both with faults on demand."""

    def __init__(self, raw: MemoryStore, store: FaultyStore, door: MemoryRedis, clock: VirtualClock) -> None:
        self.raw, self.store, self.door, self.clock = raw, store, door, clock
        self.fault: Callable[[str, str], Awaitable[None]] | None = None
        self.asked: list[str] = []
        self.inbox = MemoryInbox(door, faults=self._met)
        self.labs = Cache(store, LAB, clock=clock, rng=random.Random(2))
        self.said: list[str] = []
        self._ids = itertools.count(1)
        self.tasks: list[asyncio.Task[None]] = []
        self.worker = self.another()

    def another(self, **more: Any) -> LabWorker:
        ids, warn = (lambda: f"worker-{next(self._ids)}"), more.pop("warn", self.said.append)
        env = replace(env_on(self.clock, random.Random(3), new_id=ids, tell=self.said.append), warn=warn)
        rules = Rules(**{"catalogue": lambda: LabCatalogue(labs={"3": LabTemplate(), "5": LabTemplate()}), **more})
        return LabWorker(self.store, self.inbox, self.labs, env, rules, source="here")

    def begin(self, worker: LabWorker | None = None) -> asyncio.Task[None]:
        task = asyncio.create_task((worker or self.worker).run(), name="worker")
        self.tasks.append(task)
        return task

    def push(self, queue: QueueName, user: str, **more: Any) -> None:
        self.door.push(queue, json.dumps({"webuserid": user, **more}).encode())

    async def record(self, user: str = "mia") -> LabUser | None:
        entry = await LAB.get(self.raw, user=user)
        return None if entry is None else entry.value

    async def events(self, user: str = "mia") -> list[str]:
        record = await self.record(user)
        return [] if record is None else [news.event.value for news in record.news]

    async def until(self, condition: Callable[[], bool], within: float = 60.0) -> None:
        async with asyncio.timeout(within):
            while not condition():
                await asyncio.sleep(0.01)

    async def _met(self, when: Literal["before", "after"], verb: str) -> None:
        if when == "before":
            self.asked.append(verb)
        if self.fault is not None:
            await self.fault(when, verb)


def play(story: Callable[[Scene], Awaitable[T]]) -> T:
    async def main() -> T:
        clock = VirtualClock()
        raw = MemoryStore(clock=clock, rng=random.Random(0))
        store = FaultyStore(raw, random.Random(1), clock=clock)
        async with store:
            scene = Scene(raw, store, MemoryRedis(), clock)
            async with scene.inbox:
                scene.tasks.append(asyncio.create_task(scene.labs.run(), name="labs"))
                try:
                    return await story(scene)
                finally:
                    store.up()
                    scene.fault = None
                    for task in reversed(scene.tasks):
                        task.cancel()
                    await asyncio.gather(*scene.tasks, return_exceptions=True)

    return run_virtual(main)


def once(at: str, verb: str, error: type[Exception]) -> Callable[[str, str], Awaitable[None]]:
    """The first such call, and no other, meets that error."""
    left = [error]

    async def fault(when: str, what: str) -> None:
        if left and (when, what) == (at, verb):
            raise left.pop()("no answer")

    return fault


def test_requests_of_both_queues_are_worked_and_acknowledged() -> None:
    async def story(scene: Scene) -> None:
        scene.begin()
        scene.push("provision", "mia", labId=3)
        await scene.until(lambda: scene.worker.counters["worked"] == 1)
        record = await scene.record()
        assert record is not None
        assert record.lab is not None
        assert (record.lab.lab_id, record.lab.phase) == (3, LabPhase.WAITING)
        assert record.worked == {"provision": "t1"}
        scene.push("decommission", "mia", labId=5)
        scene.push("decommission", "mia")
        await scene.until(lambda: scene.worker.counters["worked"] == 3)
        assert await scene.events() == ["requested", "ignored", "stopped"]
        assert scene.worker.state() == {
            "taken": 3,
            "worked": 3,
            "buried": 0,
            "reclaimed": 0,
            "outages": 0,
            "coalesced": 0,
            "shifts": 1,
            "held": 0,
            "present": 1,
        }

    play(story)


def test_a_lab_that_is_not_in_the_catalogue_is_refused_and_told() -> None:
    async def story(scene: Scene) -> None:
        scene.begin()
        scene.push("provision", "mia", labId=9)
        await scene.until(lambda: scene.worker.counters["worked"] == 1)
        record = await scene.record()
        assert record is not None
        assert record.news[0].event is LabEvent.REFUSED
        assert record.news[0].reason == "there is no lab 9; there are 3, 5"

    play(story)


def test_another_lab_makes_room_where_that_was_chosen() -> None:
    async def story(scene: Scene) -> None:
        scene.begin(scene.another(switch=True))
        scene.push("provision", "mia", labId=3)
        scene.push("provision", "mia", labId=5)
        await asyncio.sleep(1.0)
        record = await scene.record()
        assert record is not None
        assert record.lab is not None
        assert record.lab.lab_id == 5

    play(story)


MALFORMED: dict[bytes, str] = {
    b"": "truncated",
    b"hello": "JSON is malformed",
    b"\xff\xfe": "",
    b"null": "expected object",
    b"[]": "expected object",
    b'{"labId":5}': "webuserid",
    b'{"webuserid":"mia"}': "labId",
    b'{"webuserid":"mia","labId":true}': "expected int, got bool",
    b'{"webuserid":"mia","labId":"5"}': "expected int, got str",
    b'{"webuserid":"mia","labId":0}': ">= 1",
    b'{"webuserid":"mia","labId":-5}': ">= 1",
    b'{"webuserid":"mia","labId":5.5}': "expected int, got float",
    b'{"webuserid":"mia","labId":99999999999999999999999}': "labId",
    b'{"webuserid":"mia","labId":2147483648}': "labId",
    b'{"webuserid":"mia","labId":null}': "labId",
    b'{"webuserid":7,"labId":5}': "expected str, got int",
    b'{"webuserid":"","labId":5}': "webuserid",
    b'{"webuserid":"a\\nb","labId":5}': "must not hold",
    b'{"webuserid":"%s","labId":5}' % (b"x" * 10_000): "webuserid",
    b'{"webuserid":"\\ud800","labId":5}': "",
    b'{"webuserid":"mia","labId":5,"x":%s%s}' % (b"[" * 1_000, b"]" * 1_000): "over 1000 brackets",
    b'{"webuserid":"%s","labId":5}' % ("\u00e9" * 256).encode(): "webuserid",
    b'{"webuserid":"a\\u200bb","labId":5}': "cannot be printed",
}


@pytest.mark.parametrize("queue", ["provision", "decommission"])
def test_what_cannot_be_understood_is_buried_with_its_reason(queue: QueueName) -> None:
    allowed = {b'{"webuserid":"mia"}', b'{"webuserid":"mia","labId":null}'} if queue == "decommission" else set()
    bad = {raw: said for raw, said in MALFORMED.items() if raw not in allowed}

    async def story(scene: Scene) -> None:
        scene.begin()
        for raw in bad:
            scene.door.push(queue, raw)
        await scene.until(lambda: scene.worker.counters["buried"] == len(bad))
        dead = {one.request: one for one in scene.door.dead}
        assert set(dead) == set(bad)
        for raw, said in bad.items():
            assert said in dead[raw].reason.replace("int | null", "int"), raw
            assert 0 < len(dead[raw].reason) < 300
            assert dead[raw].at == pytest.approx(scene.clock.wall(), abs=1)
            assert (dead[raw].queue, dead[raw].worker) == (queue, "worker-1")
        assert [entry.value.user for entry in (await LAB.list(scene.raw)).entries] == ["mia"]
        before = await scene.record()
        assert before is not None
        assert before.lab is None
        scene.push(queue, "mia", labId=5, later="field", nested={"a": [1]})
        await scene.until(lambda: scene.worker.counters["worked"] == 1)
        after = await scene.record()
        assert after is not None
        assert after.last_number == before.last_number + 1

    play(story)


@pytest.mark.parametrize(("queue", "event"), [("provision", "refused"), ("decommission", "ignored")])
def test_l35_whoever_can_be_read_is_told_that_the_request_cannot(queue: QueueName, event: str) -> None:
    """L35, M4: one event for each; ids that are none, and what cannot be read, make no record."""

    async def story(scene: Scene) -> None:
        scene.begin()
        users = ["mia", "f:b2c:ada", "a/b"]
        for user in users:
            scene.push(queue, user, labId="five")
            scene.push(queue, user, labId=-1)
        for raw in (b"{", b'{"webuserid":"a\\nb","labId":-1}', b'{"webuserid":"","labId":-1}', b'{"labId":-1}'):
            scene.door.push(queue, raw)
        await scene.until(lambda: scene.worker.counters["buried"] == 10)
        assert len(scene.door.dead) == 10
        assert sorted(entry.value.user for entry in (await LAB.list(scene.raw)).entries) == sorted(users)
        for user in users:
            record = await scene.record(user)
            assert record is not None
            assert record.lab is None
            assert [news.event.value for news in record.news] == [event, event]
            assert "cannot be understood" in record.news[0].reason
            assert "expected int" in record.news[0].reason.replace("int | null", "int")
        for _ in range(50):  # a flood of them is as long as any: the last are kept
            scene.push(queue, "mia", labId="five")
        await scene.until(lambda: scene.worker.counters["buried"] == 60)
        record = await scene.record("mia")
        assert record is not None
        assert (len(record.news), record.last_number) == (NEWS_KEPT, 52)

    play(story)


def test_l35_who_dies_between_telling_and_burying_tells_once() -> None:
    async def story(scene: Scene) -> None:
        async def fault(when: str, verb: str) -> None:
            if (when, verb) == ("before", "bury"):
                await asyncio.sleep(1e6)

        scene.fault = fault
        first = scene.begin()
        scene.push("provision", "mia", labId="five")
        scene.push("provision", "mia", labId=5)
        await scene.until(lambda: "bury" in scene.asked)
        scene.fault = None
        first.cancel()
        scene.begin(scene.another())
        async with asyncio.timeout(60):
            while await scene.events() != ["refused", "requested"]:
                await asyncio.sleep(0.1)
        assert [dead.request for dead in scene.door.dead] == [b'{"webuserid": "mia", "labId": "five"}']

    play(story)


def test_l5_a_decommission_with_a_null_lab_id_ends_whatever_lab_there_is() -> None:
    """L5, M4: null means that the field was omitted."""

    async def story(scene: Scene) -> None:
        scene.begin()
        scene.push("provision", "mia", labId=3)
        await scene.until(lambda: scene.worker.counters["worked"] == 1)
        scene.push("decommission", "mia", labId=None)
        await scene.until(lambda: scene.worker.counters["worked"] == 2)
        assert await scene.events() == ["requested", "stopped"]
        assert not scene.door.dead

    play(story)


def test_a_record_that_cannot_be_read_costs_its_own_user_only() -> None:
    async def story(scene: Scene) -> None:
        await scene.raw.put(LAB.fill(user="mia"), b"rubbish")
        scene.begin()
        scene.push("provision", "mia", labId=3)
        scene.push("provision", "ben", labId=3)
        await scene.until(lambda: scene.worker.counters["worked"] == scene.worker.counters["buried"] == 1)
        assert "correct the value or delete the key" in scene.door.dead[0].reason
        assert await scene.events("ben") == ["requested"]

    play(story)


def test_while_the_store_is_out_of_reach_what_was_taken_is_held_and_no_more_is_taken() -> None:
    async def story(scene: Scene) -> None:
        scene.begin()
        await scene.until(lambda: scene.worker.state()["present"] == 1)
        scene.store.down()
        scene.push("provision", "mia", labId=3)
        await asyncio.sleep(TTL / 2)
        assert scene.worker.state()["held"] == 1
        scene.push("provision", "ben", labId=3)
        await asyncio.sleep(2.5)
        assert scene.worker.state()["held"] == 1, "others, who reach the store, shall have it"
        assert not scene.door.dead
        scene.store.up()
        await scene.until(lambda: scene.worker.counters["worked"] == 2, within=5.0)
        assert (await scene.events(), await scene.events("ben")) == (["requested"], ["requested"])

    play(story)


@pytest.mark.parametrize("error", [Forbidden, Damaged, TooLarge])
def test_a_store_that_refuses_buries_nothing(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    """As one whose rights were taken away, or whose disk is damaged: the requests are good."""

    async def story(scene: Scene) -> None:
        async def refused(*_: Any) -> Any:
            raise error("store: no right to these keys")

        scene.begin()
        await scene.until(lambda: scene.worker.state()["present"] == 1)
        with monkeypatch.context() as patched:
            patched.setattr(scene.store, "txn", refused)
            patched.setattr(scene.store, "get", refused)
            for user in ("mia", "ben", "eva"):
                scene.push("provision", user, labId=3)
            await asyncio.sleep(TTL / 2)
            assert scene.worker.state()["held"] == 3
            scene.push("provision", "zoe", labId=3)
            await asyncio.sleep(2.5)
            assert scene.worker.state()["held"] == 3, "others, from whom it is taken, shall have it"
        await scene.until(lambda: scene.worker.counters["worked"] == 4, within=5.0)
        assert not scene.door.dead
        assert await scene.events() == ["requested"]
        assert len([said for said in scene.said if "no right" in said]) == 1, scene.said

    play(story)


def test_what_a_dead_worker_held_stays_until_the_store_tells_whether_it_was_worked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(scene: Scene) -> None:
        scene.push("provision", "mia", labId=3)
        first = scene.begin()
        held: list[Taken] = []

        async def keep(when: str, verb: str) -> None:
            if (when, verb) == ("before", "acknowledge"):
                held[:] = scene.door.queues["provision"].processing[scene.worker.worker]
                raise Unavailable("out of reach")

        scene.fault = keep
        await scene.until(lambda: bool(held))
        name, read = scene.worker.worker, scene.store.get
        await scene.raw.delete(LAB_WORKER.fill(worker=name))
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        scene.door.queues["provision"].processing[name] = list(held)
        scene.door.workers.add(name)

        async def forbidden(key: str, **more: Any) -> Any:
            if key.startswith(LAB.prefix()):
                raise Forbidden("store: no right to these keys")
            return await read(key, **more)

        scene.fault = None
        other = scene.another()
        with monkeypatch.context() as patched:
            patched.setattr(scene.store, "get", forbidden)
            scene.begin(other)
            await asyncio.sleep(3 * RECLAIM_EVERY)
            assert other.counters["reclaimed"] == 0
        await scene.until(lambda: name not in scene.door.workers)
        assert await scene.events() == ["requested"], "it was worked, and is not again"

    play(story)


def test_a_worker_that_may_not_be_present_waits_until_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(scene: Scene) -> None:
        async def refused(*_: Any) -> Any:
            raise Forbidden("store: no right to these keys")

        scene.push("provision", "mia", labId=3)
        with monkeypatch.context() as patched:
            patched.setattr(scene.store, "txn", refused)
            task = scene.begin()
            await asyncio.sleep(TTL)
            assert not task.done()
        await scene.until(lambda: scene.worker.counters["worked"] == 1)

    play(story)


@pytest.mark.parametrize("kind", ["lost", "never"])
def test_a_lost_answer_of_the_store_is_looked_up(kind: Any) -> None:
    async def story(scene: Scene) -> None:
        scene.store.script("txn", kind, prefix=LAB.prefix())
        scene.begin()
        scene.push("provision", "mia", labId=3)
        await scene.until(lambda: scene.worker.counters["worked"] == 1)
        assert await scene.events() == ["requested"]

    play(story)


@pytest.mark.parametrize("verb", ["take", "acknowledge", "bury"])
@pytest.mark.parametrize(("at", "error"), [("before", Unavailable), ("after", Uncertain)])
def test_a_lost_answer_of_the_inbox_costs_no_more_than_a_moment(verb: str, at: str, error: type[Exception]) -> None:
    async def story(scene: Scene) -> None:
        scene.fault = once(at, verb, error)
        scene.push("provision", "mia", labId=3)
        scene.push("provision", "mia", labId=5)
        scene.door.push("provision", b"{")
        scene.begin()
        await asyncio.sleep(RECLAIM_EVERY / 2)  # and not only when it looks anyway
        assert await scene.events() == ["requested", "refused"]
        assert [dead.request for dead in scene.door.dead] == [b"{"]
        assert scene.worker.state()["held"] == 0
        assert scene.worker.counters["outages"] == 1

    play(story)


def test_what_is_held_without_anybody_having_heard_of_it_is_found() -> None:
    """As after a take whose answer was lost, and which was done later than it was asked for."""

    async def story(scene: Scene) -> None:
        scene.begin()
        await scene.until(lambda: bool(scene.door.workers))
        scene.push("provision", "mia", labId=3)
        scene.door.take(scene.worker.worker, 1)
        await asyncio.sleep(2 * RECLAIM_EVERY)
        assert await scene.events() == ["requested"]
        assert scene.worker.state()["held"] == 0

    play(story)


def test_what_was_acknowledged_and_is_back_is_acknowledged_again_and_not_worked() -> None:
    """As after a restart of the inbox that lost the latest."""

    async def story(scene: Scene) -> None:
        scene.begin()
        scene.push("provision", "mia", labId=3)
        scene.push("provision", "mia", labId=5)
        await scene.until(lambda: scene.worker.counters["worked"] == 2)
        queue = scene.door.queues["provision"]
        queue.processing[scene.worker.worker].append(Taken("provision", "t1", b'{"webuserid":"mia","labId":3}'))
        await asyncio.sleep(2 * RECLAIM_EVERY)
        assert not queue.processing[scene.worker.worker]
        assert len(await scene.events()) == 2
        assert scene.worker.counters["worked"] == 2

    play(story)


def test_an_inbox_that_is_out_of_reach_is_not_asked_all_the_time() -> None:
    async def story(scene: Scene) -> None:
        async def gone(when: str, _verb: str) -> None:
            if when == "before":
                raise Unavailable("out of reach")

        scene.begin()
        await scene.until(lambda: scene.worker.state()["present"] == 1)
        scene.fault = gone
        scene.asked.clear()
        await asyncio.sleep(60.0)
        assert 20 < len(scene.asked) < 120, len(scene.asked)
        scene.fault = None
        scene.push("provision", "mia", labId=3)
        await scene.until(lambda: scene.worker.counters["worked"] == 1, within=5.0)

    play(story)


def test_who_lost_its_lease_begins_anew_under_another_name() -> None:
    async def story(scene: Scene) -> None:
        scene.begin()
        await scene.until(lambda: scene.worker.state()["present"] == 1)
        name = scene.worker.worker
        (entry,) = (await LAB_WORKER.list(scene.raw)).entries
        assert (entry.parts["worker"], entry.value.source) == (name, "here")
        assert entry.lease is not None
        await scene.raw.delete(entry.key)
        scene.push("provision", "mia", labId=3)  # it learns of it when it writes
        await scene.until(lambda: scene.worker.counters["worked"] == 1, within=1.0)
        assert scene.worker.worker not in ("", name)
        assert scene.worker.counters["shifts"] == 2
        assert await scene.events() == ["requested"]
        assert name not in scene.door.workers
        assert "registers again" in scene.said[0]

    play(story)


def test_a_lease_that_is_gone_is_noticed_without_anything_to_do() -> None:
    async def story(scene: Scene) -> None:
        scene.begin()
        await scene.until(lambda: scene.worker.state()["present"] == 1)
        scene.store.down()
        await asyncio.sleep(3 * TTL)
        assert not (await LAB_WORKER.list(scene.raw)).entries
        scene.store.up()
        await scene.until(lambda: scene.worker.counters["shifts"] == 2, within=5.0)

    play(story)


def test_told_to_end_it_is_gone_at_once_and_others_have_what_it_held() -> None:
    async def story(scene: Scene) -> None:
        task = scene.begin()
        await scene.until(lambda: scene.worker.state()["present"] == 1)
        scene.store.script("txn", "slow", prefix=LAB.prefix(), times=1000)
        scene.store.faults.slowest = 3600.0
        scene.push("provision", "mia", labId=3)
        await asyncio.sleep(1.0)
        assert scene.worker.state()["held"] == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not (await LAB_WORKER.list(scene.raw)).entries
        assert list(scene.door.queues["provision"].waiting) == [b'{"webuserid": "mia", "labId": 3}']
        assert not scene.door.workers
        assert scene.worker.state()["present"] == 0

    play(story)


def test_a_stranger_among_the_workers_is_left_alone() -> None:
    async def story(scene: Scene) -> None:
        scene.door.workers.add("a/b")
        scene.begin()
        scene.push("provision", "mia", labId=3)
        await asyncio.sleep(2 * RECLAIM_EVERY)
        assert await scene.events() == ["requested"]
        assert "a/b" in scene.door.workers

    play(story)


def test_a_fault_of_our_own_holds_one_request_and_no_other() -> None:
    async def story(scene: Scene) -> None:
        calls = itertools.count()

        def sometimes() -> LabCatalogue:
            if next(calls) == 0:
                raise ZeroDivisionError("oops")
            return LabCatalogue()

        worker = scene.another(catalogue=sometimes)
        scene.begin(worker)
        scene.push("provision", "mia", labId=3)
        scene.push("provision", "ben", labId=3)
        await scene.until(lambda: worker.counters["worked"] == 2)
        (said,) = scene.said
        assert re.fullmatch("lab request of (mia|ben): ZeroDivisionError: oops; it will be tried again", said)
        assert not scene.door.dead

    play(story)


def test_a_door_that_refuses_is_told_of_once_and_tried_again_and_again() -> None:
    async def story(scene: Scene) -> None:
        warned: list[str] = []
        worker = scene.another(warn=warned.append)
        tries = 0

        async def refused(when: str, verb: str) -> None:
            nonlocal tries
            if (when, verb) == ("before", "take"):
                tries += 1
                raise Invalid(f"take of worker-{tries}: it is no list; remove it")

        scene.fault = refused
        task = scene.begin(worker)
        scene.push("provision", "mia", labId=3)
        await asyncio.sleep(120.0)
        assert not task.done()
        assert 4 < tries < 20
        assert warned == ["lab worker: take of worker-1: it is no list; remove it; it continues once that is fixed"]
        scene.fault = None
        await scene.until(lambda: worker.counters["worked"] == 1)
        await scene.until(lambda: len(warned) > 1)
        scene.fault = refused
        await scene.until(lambda: len(warned) > 2)
        assert warned[1] == "lab worker: takes requests again"
        assert "it is no list" in warned[2]
        assert not scene.said

    play(story)


def test_it_ends_when_the_store_is_closed() -> None:
    async def story(scene: Scene) -> None:
        task = scene.begin()
        await scene.until(lambda: scene.worker.state()["present"] == 1)
        await scene.raw.aclose()
        with pytest.raises(Closed):
            await asyncio.wait_for(task, TTL)

    play(story)
