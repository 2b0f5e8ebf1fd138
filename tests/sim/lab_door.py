"""Workers at the lab door as processes in virtual time: each with a wire to the store and one to the queues.

No controller runs, so that all news in a user's record are answers to requests. Each request names a lab id of its own:
the news tell which requests were worked, how often, and in which order.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeVar

from environment import env_on
from harness.artefacts import keep

from hostler.drivers.inbox.memory import MemoryInbox, MemoryRedis
from hostler.drivers.store.memory import MemoryStore
from hostler.engine.labs.queue_consumer import Rules
from hostler.engine.labs.worker import LabWorker
from hostler.keys.cache import Cache
from hostler.keys.lab import LAB, user_of_request
from hostler.kit.tasks import run_together
from hostler.kit.virtual_loop import ProcessLoop, VirtualClock, run_virtual
from hostler.model.lab import LabCatalogue
from hostler.sim.faulty_link import FaultyLink, Weather

from .evidence import name_run

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from hostler.model.lab import LabUser
    from hostler.ports.inbox import QueueName, Taken

T = TypeVar("T")
PATIENCE = 120.0
"""Virtual seconds in which everything must be worked."""


class InboxWire:
    """An inbox, as one process sees it: what is asked is on its way whatever becomes of who asks."""

    def __init__(self, inbox: MemoryInbox, wire: FaultyLink) -> None:
        self._inbox, self.wire = inbox, wire

    async def take(self, worker: str, *, limit: int, within: float) -> Sequence[Taken]:
        return await self._call(lambda: self._inbox.take(worker, limit=limit, within=within))

    async def take_of(self, worker: str, queue: QueueName, user: str) -> Taken | bool:
        return await self._call(lambda: self._inbox.take_of(worker, queue, user))

    async def behind(self, queue: QueueName, user: str) -> Sequence[bytes]:
        return await self._call(lambda: self._inbox.behind(queue, user))

    async def held(self, worker: str) -> Sequence[Taken]:
        return await self._call(lambda: self._inbox.held(worker))

    async def acknowledge(self, worker: str, done: Sequence[Taken]) -> Sequence[Taken]:
        return await self._call(lambda: self._inbox.acknowledge(worker, done))

    async def bury(self, worker: str, taken: Taken, reason: str, at: float) -> Sequence[Taken]:
        return await self._call(lambda: self._inbox.bury(worker, taken, reason, at))

    async def workers(self) -> frozenset[str]:
        return await self._call(self._inbox.workers)

    async def release(self, worker: str, done: Sequence[Taken]) -> int:
        return await self._call(lambda: self._inbox.release(worker, done))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    async def _call(self, do: Any) -> Any:
        return await self.wire.call(do)


@dataclass
class Point:
    """What happens at the `at`-th point that the watched worker reaches: before or after a request is done."""

    watched: str
    at: int
    do: Callable[[ChannelKind, Host], None]
    passed: int = 0
    where: str = ""


class Host:
    """The process of one worker."""

    def __init__(self, door: ChannelKind, name: str) -> None:
        self.door, self.name = door, name
        door.lives += 1
        self.process = f"{name}#{door.lives}"
        self.rng = random.Random(f"{door.seed} {self.process}")
        self.store = FaultyLink(door.store, self.rng, door.weather)
        self.inbox = FaultyLink(door.store, self.rng, door.inbox_weather)
        self.store.step, self.inbox.step = self._stepper("store"), self._stepper("inbox")
        self.store.fate = lambda _: door.fate(self, "store")
        self.inbox.fate = lambda _: door.fate(self, "inbox")
        self.dead = False
        self.worker: LabWorker | None = None
        self.task = door.loop.launch(self.process, self._main())

    def kill(self) -> None:
        """SIGKILL."""
        self.dead = self.store.dead = self.inbox.dead = True
        self.door.loop.kill(self.process)

    async def _main(self) -> None:
        door = self.door
        labs = Cache(self.store, LAB, clock=door.clock, rng=self.rng)  # type: ignore[arg-type]
        self.worker = LabWorker(
            self.store,  # type: ignore[arg-type]
            InboxWire(door.client, self.inbox),
            labs,
            env_on(
                door.clock,
                self.rng,
                new_id=lambda: f"{self.name}-{self.rng.getrandbits(64):016x}",
                tell=door.said.append,
            ),
            Rules(LabCatalogue, limits=door.limits),
            width=door.width,
        )
        try:
            await run_together(self.process, {"labs": labs.run(), "worker": self.worker.run()})
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - the door raises it
            if not self.dead:
                door.failure = door.failure or error

    def _stepper(self, where: str) -> Callable[[str], Coroutine[Any, Any, None]]:
        async def step(point: str) -> None:
            if self.dead:
                raise asyncio.CancelledError
            if self.door.passes(self, f"{where} {point}"):
                await asyncio.sleep(0 if not self.dead else 1e9)

        return step


@dataclass
class ChannelKind:
    """Everything, from nothing to the end."""

    seed: int = 0
    workers: int = 3
    width: int = 3
    """Requests that a worker holds at once: few, so that all have some to do."""
    limits: dict[QueueName, float] = field(default_factory=dict)
    point: Point | None = None
    loss: tuple[str, int] | None = None
    """The kind of fault, and the number of the request of the first worker that meets it."""
    weather: Weather = field(default_factory=Weather)
    inbox_weather: Weather = field(default_factory=Weather)
    hosts: dict[str, Host] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    failure: Exception | None = None
    over: bool = False
    lives: int = 0
    asked: int = 0
    lost: str = ""
    pushed: dict[tuple[str, str], list[int]] = field(default_factory=lambda: defaultdict(list))
    malformed: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.loop, self.clock, self.rng = ProcessLoop(self.seed), VirtualClock(), random.Random(self.seed)

    def run(self, story: Callable[[ChannelKind], Coroutine[Any, Any, T]]) -> T:
        async def main() -> T:
            async with AsyncExitStack() as stack:
                self.store = await stack.enter_async_context(MemoryStore(clock=self.clock, rng=self.rng))
                await self.store.grant(1e8)  # the storage's own task must belong to nobody
                self.door = MemoryRedis()
                self.client = await stack.enter_async_context(MemoryInbox(self.door))
                for number in range(1, self.workers + 1):
                    self.spawn(f"w{number}")
                try:
                    return await story(self)
                finally:
                    self.over = True
                    for host in self.hosts.values():
                        host.kill()
                    await asyncio.wait([host.task for host in self.hosts.values()], timeout=60)
                    await asyncio.sleep(2 * self.weather.slowest + 5)  # what was on its way arrives

        try:
            return run_virtual(main, loop=self.loop)
        except BaseException as error:
            name_run(error, f"{self.workers} workers, seed {self.seed}", getattr(self, "store", None))
            keep("said", self.said)
            raise

    def spawn(self, name: str) -> None:
        """A new process of that name, unless the story is over."""
        if not self.over:
            self.hosts[name] = Host(self, name)

    # What the front end does

    def ask(self, user: str, queue: QueueName, **more: object) -> None:
        """A request with a lab id that no other of this user has, and a field that nobody knows."""
        number = 1 + sum(len(ids) for (other, _), ids in self.pushed.items() if other == user)
        self.pushed[user, queue].append(number)
        self.door.push(queue, json.dumps({"webuserid": user, "labId": number, "sent": "now", **more}).encode())

    def ask_nonsense(self, queue: QueueName, raw: bytes) -> None:
        """A request that cannot be understood."""
        self.malformed.append(raw)
        self.door.push(queue, raw)

    # Faults

    def passes(self, host: Host, where: str) -> bool:
        point = self.point
        if point is None or point.where or host.name != point.watched:
            return False
        point.passed += 1
        if point.passed < point.at:
            return False
        point.where = where
        point.do(self, host)
        return True

    def fate(self, host: Host, where: str) -> str | None:
        if self.loss is None or host.name != "w1":
            return None
        self.asked += 1
        if self.asked != self.loss[1]:
            return None
        self.lost = where
        return self.loss[0]

    # What must be

    async def settled(self) -> None:
        """Until the queues are empty, and nobody holds anything."""
        end = self.clock.now() + PATIENCE
        while self._left():
            if self.failure is not None:
                raise self.failure
            assert self.clock.now() < end, f"still there: {self._left()}"
            await asyncio.sleep(0.25)

    def _left(self) -> str:
        left = []
        for name, queue in self.door.queues.items():
            held = {worker: taken for worker, taken in queue.processing.items() if taken}
            left += [f"{name}: {what}" for what in (list(queue.waiting), dict(queue.next), held, queue.busy) if what]
        return "; ".join(left)

    async def records(self) -> dict[str, LabUser]:
        return {entry.value.user: entry.value for entry in (await LAB.list(self.store)).entries}

    async def check(self) -> None:
        """Every request was worked once, in order within its queue; who sent nonsense was told of it once."""
        if self.failure is not None:
            raise self.failure
        records = await self.records()
        assert set(records) == {user for user, _ in self.pushed}
        for user, record in records.items():
            numbers = [news.number for news in record.news]
            answered = [news.lab_id for news in record.news]
            queues = {queue: ids for (other, queue), ids in self.pushed.items() if other == user}
            nonsense = [user_of_request(raw) for raw in self.malformed].count(user)
            assert [news.reason for news in record.news if news.lab_id is None and not news.reason] == []
            assert [news.lab_id for news in record.news].count(None) == nonsense, f"{user}: told otherwise of nonsense"
            total = sum(len(ids) for ids in queues.values()) + nonsense
            assert numbers == list(range(1, total + 1)), f"{user}: {total} requests, {len(numbers)} answers"
            for queue, ids in queues.items():
                assert [lab_id for lab_id in answered if lab_id in ids] == ids, f"{user}: {queue} out of order"
        assert sorted(dead.request for dead in self.door.dead) == sorted(self.malformed)
        assert all(dead.reason and dead.at > 0 for dead in self.door.dead)
