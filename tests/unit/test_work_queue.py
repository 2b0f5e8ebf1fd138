"""The work queue: each name once at a time, no wake-up lost, and failures that do not spread."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

from hostler.engine.runtime.work_queue import WorkQueue
from hostler.errors import Conflict, LeadershipLost, Unavailable
from hostler.kit.virtual_loop import VirtualClock, run_virtual


def queue_story(work: Any, story: Any, **options: Any) -> None:
    async def main() -> None:
        told: list[str] = []
        queue = WorkQueue(work, clock=VirtualClock(), rng=random.Random(1), tell=told.append, counters={}, **options)
        running = asyncio.create_task(queue.run(), name="queue")
        try:
            await story(queue, running)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    run_virtual(main)


def test_a_name_is_worked_on_once_at_a_time_and_once_more_if_it_was_added_meanwhile() -> None:
    log: list[str] = []

    async def work(name: str) -> None:
        log.append(f"{name} begins")
        await asyncio.sleep(1)
        log.append(f"{name} ends")

    async def story(queue: WorkQueue, running: asyncio.Task[None]) -> None:
        for _ in range(3):
            queue.add("a")
        await asyncio.sleep(0.5)
        for _ in range(3):
            queue.add("a")
        await asyncio.sleep(10)
        assert log == ["a begins", "a ends"] * 2

    queue_story(work, story)


def test_no_more_than_its_width_is_worked_on_at_once_and_the_patient_are_not_forgotten() -> None:
    now: set[str] = set()
    order: list[str] = []

    async def work(name: str) -> None:
        now.add(name)
        order.append(name)
        assert len(now) <= 4
        await asyncio.sleep(1)
        now.discard(name)

    async def story(queue: WorkQueue, running: asyncio.Task[None]) -> None:
        for number in range(100):
            queue.add(f"p{number}", patient=True)
        for number in range(100):
            queue.add(f"u{number}")
        await asyncio.sleep(20)
        share = sum(name.startswith("p") for name in order) / len(order)
        assert 0.05 < share < 0.2
        await asyncio.sleep(100)
        assert len(order) == 200

    queue_story(work, story, width=4)


def test_a_name_that_fails_waits_longer_each_time_and_the_others_go_on() -> None:
    tries: list[float] = []
    good: list[float] = []
    errors = itertools.cycle((Conflict("c"), Unavailable("u"), ValueError("a bug")))

    async def work(name: str) -> None:
        if name == "bad":
            tries.append(asyncio.get_running_loop().time())
            raise next(errors)
        good.append(asyncio.get_running_loop().time())

    async def story(queue: WorkQueue, running: asyncio.Task[None]) -> None:
        queue.add("bad")
        await asyncio.sleep(100)
        queue.add("good")
        await asyncio.sleep(1)
        assert len(good) == 1
        assert 8 <= len(tries) <= 16
        assert not running.done()

    queue_story(work, story)


def test_a_lost_leadership_ends_all_of_it() -> None:
    cancelled: list[str] = []

    async def work(name: str) -> None:
        if name == "last":
            raise LeadershipLost("lost")
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            cancelled.append(name)
            raise

    async def story(queue: WorkQueue, running: asyncio.Task[None]) -> None:
        queue.add("a")
        await asyncio.sleep(1)
        queue.add("last")
        await asyncio.wait((running,))
        assert isinstance(running.exception(), LeadershipLost)
        assert cancelled == ["a"]

    queue_story(work, story)


def test_what_is_due_later_comes_in_time_and_the_sooner_wins() -> None:
    log: list[tuple[str, float]] = []

    async def work(name: str) -> None:
        log.append((name, asyncio.get_running_loop().time()))

    async def story(queue: WorkQueue, running: asyncio.Task[None]) -> None:
        queue.add("a", after=50)
        queue.add("a", after=10)
        queue.add("a", after=70)
        queue.add("b", after=5)
        await asyncio.sleep(100)
        assert log == [("b", 5.0), ("a", 10.0)]

    queue_story(work, story)


def test_a_name_that_is_added_before_its_call_has_begun_is_worked_on_once() -> None:
    log: list[str] = []

    async def work(name: str) -> None:
        log.append(name)

    async def story(queue: WorkQueue, running: asyncio.Task[None]) -> None:
        await asyncio.sleep(1)
        queue.add("a")
        queue.add("a")
        await asyncio.sleep(1)
        assert log == ["a"]
        assert (queue.working, queue.waiting, queue.turns) == (0, 0, 2)

    queue_story(work, story)


def test_a_call_that_reads_the_state_late_covers_what_was_added_before() -> None:
    log: list[float] = []

    async def story(queue: WorkQueue, running: asyncio.Task[None]) -> None:
        queue.add("a")
        await asyncio.sleep(1)
        queue.add("a")
        queue.add("a", after=20)
        assert queue.has("a")
        assert queue.waiting == 1
        await asyncio.sleep(100)
        assert log == [5.0]

    queues: list[WorkQueue] = []

    async def work(name: str) -> None:
        await asyncio.sleep(5)
        queues[0].take(name)
        log.append(asyncio.get_running_loop().time())

    async def known(queue: WorkQueue, running: asyncio.Task[None]) -> None:
        queues.append(queue)
        await story(queue, running)

    queue_story(work, known)


def test_stopped_calls_begin_again_also_those_that_had_not_taken_their_first_step() -> None:
    log: list[str] = []

    async def work(name: str) -> None:
        log.append(f"{name} begins")
        await asyncio.sleep(5)
        log.append(f"{name} ends")

    async def story(queue: WorkQueue, running: asyncio.Task[None]) -> None:
        queue.add("a")
        await asyncio.sleep(1)
        queue.add("b")  # its task exists and has not begun
        await queue.stop(["a", "b", "c"])
        assert "a ends" not in log
        await asyncio.sleep(20)
        assert sorted(log) == ["a begins", "a begins", "a ends", "b begins", "b ends", "c begins", "c ends"]

    queue_story(work, story)


def test_a_failed_call_delays_what_was_added_meanwhile_and_forgets_nothing() -> None:
    log: list[float] = []

    async def work(name: str) -> None:
        log.append(asyncio.get_running_loop().time())
        await asyncio.sleep(1)
        if len(log) == 1:
            raise Conflict("c")

    async def story(queue: WorkQueue, running: asyncio.Task[None]) -> None:
        queue.add("a")
        await asyncio.sleep(0.5)
        queue.add("a")
        await asyncio.sleep(10)
        assert len(log) == 2
        assert 1.0 < log[1] <= 1.05 + 1e-9

    queue_story(work, story)


def test_nothing_is_worked_on_before_it_runs_nor_after_it_was_closed() -> None:
    log: list[str] = []

    async def work(name: str) -> None:
        log.append(name)
        await asyncio.sleep(1000)

    async def main() -> None:
        queue = WorkQueue(work, clock=VirtualClock(), rng=random.Random(1), tell=print, counters={})
        queue.add("a")
        await asyncio.sleep(1)
        assert log == []
        running = asyncio.create_task(queue.run(), name="queue")
        await asyncio.sleep(1)
        assert log == ["a"]
        running.cancel()
        await asyncio.wait((running,))
        assert queue.working == 0
        queue.add("b")
        await asyncio.sleep(1)
        assert log == ["a"]

    run_virtual(main)
