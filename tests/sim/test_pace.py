"""How fast virtual time goes, and who may say so."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

import pytest
from harness.pace import check, patience

from hostler.errors import Conflict, Invalid, TooManyTries
from hostler.kit.virtual_loop import PROCESS
from hostler.model.sim_api import MOST_EVENTS, MOST_SECONDS, Mode
from hostler.sim import time_control
from hostler.sim.time_control import MOST_STEPS, Over, Pace, PacedLoop, PacedThread

T = TypeVar("T")

SOON = 60.0
"""Real seconds after which something will not happen any more."""


class World:
    """A world in which one bell rings every `every` virtual seconds."""

    def __init__(self, every: float = 10.0) -> None:
        self.loop = PacedLoop(7)
        self.rang: list[float] = []
        self.failures: list[str] = []
        self.every = every
        self.thread = PacedThread(self.loop, self._main, lambda what, why: self.failures.append(f"{what}: {why!r}"))

    async def _main(self) -> None:
        while True:
            await asyncio.sleep(self.every)
            self.rang.append(self.loop.time())

    def ask(self, do: Callable[[], T]) -> T:
        """Done inside."""

        async def asked() -> T:
            return do()

        return self.loop.submit(asked).result(SOON)

    def now(self) -> float:
        return self.ask(self.loop.time)

    def to(self, mode: Mode, rate: float | None = None) -> Pace:
        return self.ask(lambda: self.loop.change(mode, rate=rate, epoch=self.loop.pace.epoch))

    def grant(self, seconds: float | None = None, events: int | None = None) -> Future[float]:
        return self.ask(lambda: self.loop.grant(seconds=seconds, events=events).done)

    def step(self, seconds: float | None = None, events: int | None = None) -> float:
        return self.grant(seconds, events).result(SOON)


@pytest.fixture
def world() -> Iterator[World]:
    """At the instant 0, in manual mode."""
    world = World()
    first = world.loop.submit(_manual(world.loop))
    world.thread.start()
    assert first.result(SOON) == Pace(Mode.MANUAL, 1.0, 1)
    yield world
    assert world.thread.stop(within=SOON)


def _manual(loop: PacedLoop) -> Callable[[], Awaitable[Pace]]:
    async def change() -> Pace:
        return loop.change(Mode.MANUAL, epoch=0)

    return change


# Manual


def test_time_stands_still_until_it_is_stepped_and_ends_exactly_there(world: World) -> None:
    assert world.now() == 0
    assert world.step(9.5) == 9.5
    assert (world.now(), world.rang) == (9.5, [])
    assert world.step(0.5) == 10
    assert world.rang == [10.0]
    assert world.step(95) == 105
    assert world.rang == [10.0 * number for number in range(1, 11)]
    assert world.now() == 105


def test_a_step_by_events_ends_at_the_instants_at_which_something_was_due(world: World) -> None:
    assert world.step(events=1) == 10
    assert world.step(events=3) == 40
    assert world.rang == [10, 20, 30, 40]


def test_a_step_by_events_ends_when_nothing_is_due_at_all() -> None:
    world = World(every=math.inf)
    world.loop.submit(_manual(world.loop))
    world.thread.start()
    assert world.step(events=5) == 0
    assert world.step(3) == 3
    world.thread.stop(within=SOON)


def test_what_many_ask_for_at_once_is_done_one_after_the_other(world: World) -> None:
    """Each gets all of its own time, and is answered when that is over."""
    ends: list[float] = []

    def client() -> None:
        ends.append(world.step(7))

    clients = [threading.Thread(target=client) for _ in range(10)]
    for each in clients:
        each.start()
    for each in clients:
        each.join(SOON)
    assert sorted(ends) == [7.0 * number for number in range(1, 11)]
    assert world.now() == 70


def test_what_cannot_be_a_step_is_refused(world: World) -> None:
    wrong = [0, -1, math.nan, math.inf, MOST_SECONDS + 1]
    for seconds in wrong:
        with pytest.raises(Invalid, match="seconds"):
            world.step(seconds)
    for events in (0, -1, MOST_EVENTS + 1):
        with pytest.raises(Invalid, match="events"):
            world.step(events=events)
    for both in ({}, {"seconds": 1, "events": 1}):
        with pytest.raises(Invalid, match="either"):
            world.step(**both)
    with pytest.raises(Conflict, match="epoch 0"):
        world.ask(lambda: world.loop.grant(seconds=1, epoch=0))
    world.to(Mode.MEASURED)
    with pytest.raises(Conflict, match="manual"):
        world.step(1)


def test_steps_wait_for_each_other_and_not_too_many_of_them(world: World) -> None:
    def flood() -> int:
        for number in range(MOST_STEPS):
            world.loop.grant(seconds=1 + number)
        with pytest.raises(TooManyTries):
            world.loop.grant(seconds=1)
        return len(world.loop.steps_granted)

    assert world.ask(flood) == MOST_STEPS


# Modes and epochs


def test_of_two_who_change_the_mode_under_one_epoch_the_second_is_told(world: World) -> None:
    assert world.ask(lambda: world.loop.change(Mode.MEASURED, rate=2, epoch=1)) == Pace(Mode.MEASURED, 2.0, 2)
    with pytest.raises(Conflict, match="measured in epoch 2"):
        world.ask(lambda: world.loop.change(Mode.NO_WAIT, epoch=1))
    assert world.ask(lambda: world.loop.pace) == Pace(Mode.MEASURED, 2.0, 2)
    for rate in (0, -1, math.nan, math.inf, 1e9):
        with pytest.raises(Invalid, match="rate"):
            world.ask(lambda rate=rate: world.loop.change(Mode.MEASURED, rate=rate, epoch=2))


def test_a_change_of_mode_drops_the_steps_of_the_epoch_before(world: World) -> None:
    def at_once() -> list[Future[float]]:
        steps = [world.loop.grant(seconds=1000).done for _ in range(3)]
        world.loop.change(Mode.MANUAL, epoch=1)
        return [*steps, world.loop.grant(seconds=5, epoch=2).done]

    *dropped, fresh = world.ask(at_once)
    for step in dropped:
        with pytest.raises(Conflict, match="dropped: the mode was changed to manual"):
            step.result(SOON)
    assert fresh.result(SOON) == 5
    assert world.now() == 5


def test_a_long_step_is_interrupted_between_two_instants() -> None:
    world = World(every=0.01)
    world.loop.submit(_manual(world.loop))
    world.thread.start()
    step = world.grant(MOST_SECONDS)
    until(lambda: world.now() > 1)
    world.to(Mode.MANUAL)
    with pytest.raises(Conflict):
        step.result(SOON)
    stopped = world.now()
    assert 1 < stopped < MOST_SECONDS
    assert world.now() == stopped
    world.thread.stop(within=SOON)


def test_measured_time_is_real_time_by_the_rate(world: World) -> None:
    started = time.monotonic()
    world.to(Mode.MEASURED, 200.0)
    until(lambda: world.now() >= 60)
    took = time.monotonic() - started
    assert 0.3 <= took < SOON
    assert world.rang == [10.0 * number for number in range(1, len(world.rang) + 1)]
    pace = world.to(Mode.MANUAL)
    assert pace.epoch == 3
    stopped = world.now()
    assert stopped / 200.0 <= time.monotonic() - started + 0.001
    time.sleep(0.02)
    assert world.now() == stopped


def test_measured_time_passes_also_where_nothing_is_due() -> None:
    world = World(every=math.inf)
    world.thread.start()
    world.to(Mode.MEASURED, 1000.0)
    first = world.now()
    until(lambda: world.loop.time() > first + 5)  # as another thread reads it
    world.thread.stop(within=SOON)


def test_a_world_that_was_busy_makes_up_for_some_of_it_only(world: World) -> None:
    started, slept = time.monotonic(), [0.0]

    def sleep() -> None:
        slept[0] = 1000.0

    world.ask(lambda: setattr(world.loop, "_real", lambda: time.monotonic() + slept[0]))
    world.to(Mode.MEASURED, 5.0)
    world.ask(sleep)
    until(lambda: world.now() >= 5)
    time.sleep(0.1)
    assert world.now() <= 5 * (1.1 + time.monotonic() - started)


def test_without_waiting_time_jumps_and_an_idle_world_costs_little(world: World) -> None:
    world.every = 100.0
    world.to(Mode.NO_WAIT, 20_000.0)
    until(lambda: world.loop.time() >= 10_000)  # a second's worth may be there at once
    started, spent = time.monotonic(), time.process_time()
    before = world.loop.time()
    time.sleep(0.3)
    until(lambda: world.loop.time() > before)  # its thread may have had no turn
    went = world.loop.time() - before
    took, busy = time.monotonic() - started, time.process_time() - spent
    assert went <= 20_000 * (took + 1.1)
    assert busy < took / 2


# Calls from outside


@pytest.mark.parametrize("mode", list(Mode))
def test_calls_are_served_soon_in_every_mode(mode: Mode) -> None:
    world = World(every=0.001)  # never idle
    world.thread.start()
    world.to(mode)
    if mode is Mode.MANUAL:
        world.grant(MOST_SECONDS)
    medians, began = list[float](), time.monotonic()
    while not medians or (min(medians) >= 0.010 and len(medians) < 20):  # others may need the processor for a while
        waits = []
        for _ in range(100):
            asked = time.perf_counter()
            world.now()
            waits.append(time.perf_counter() - asked)
        medians.append(sorted(waits)[50])
    check(min(medians), 0.010, since=began, what="a call")
    before = world.now()
    until(lambda: world.now() > before)  # and those who ask all the time do not keep the world from going on
    world.thread.stop(within=SOON)


def test_what_comes_from_outside_belongs_to_no_process_and_one_request_finds_one_instant(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LINGER", "LINGER_MOST"):  # a request takes longer between two calls where the machine is slow
        monkeypatch.setattr(time_control, name, patience(getattr(time_control, name) / 2))

    def named() -> str | None:
        return PROCESS.get()

    assert world.ask(named) is None
    world.every = 1.0
    world.to(Mode.NO_WAIT, 1e6)
    same: list[int] = []
    while not same or (max(same) <= 25 and len(same) < 10):  # others may need the processor in between
        same.append(0)
        for _ in range(50):
            first = world.now()
            same[-1] += world.now() == first
            time.sleep(0.01)
    assert max(same) > 25, same


def test_a_call_that_is_withdrawn_before_it_was_begun_never_is(world: World) -> None:
    release, done = threading.Event(), []

    async def hold() -> None:
        release.wait(SOON)

    async def work() -> None:
        done.append(1)

    world.loop.submit(hold)
    waiting = world.loop.submit(work)
    world.loop.withdraw(waiting)
    release.set()
    world.now()
    assert (done, waiting.cancelled()) == ([], True)


# Ends and failures


def test_without_calls_every_pace_tells_the_same_story() -> None:
    async def story(loop: PacedLoop, told: list[tuple[str, float]]) -> None:
        async def one(name: str) -> None:
            while loop.time() < 30:
                await asyncio.sleep(1 + (loop.rng.random() > 0.5))
                told.append((name, loop.time()))

        await asyncio.gather(*(one(name) for name in "abcd"))

    stories = []
    for mode, rate in ((Mode.NO_WAIT, None), (Mode.MEASURED, 1000.0), (Mode.NO_WAIT, 500.0)):
        loop, told, over = PacedLoop(3), [], threading.Event()

        async def main(
            loop: PacedLoop = loop,
            told: list[tuple[str, float]] = told,
            over: threading.Event = over,
            pace: tuple[Mode, float | None] = (mode, rate),
        ) -> None:
            loop.change(pace[0], rate=pace[1], epoch=0)
            await story(loop, told)
            over.set()
            await asyncio.Event().wait()

        thread = PacedThread(loop, main, lambda *_: None)
        thread.start()
        assert over.wait(SOON)
        thread.stop(within=SOON)
        stories.append(told)
    assert stories[0] == stories[1] == stories[2]
    assert len(stories[0]) > 60


def test_what_fails_inside_is_told_and_the_rest_goes_on(world: World) -> None:
    def fail() -> None:
        raise ZeroDivisionError("by hand")

    world.ask(lambda: world.loop.call_later(1, fail) and None)
    assert world.step(2) == 2
    assert len(world.failures) == 1
    assert "by hand" in world.failures[0]
    with pytest.raises(ZeroDivisionError):
        world.ask(fail)
    assert world.step(10) == 12
    assert (world.rang, len(world.failures)) == ([10.0], 1)


def test_a_world_that_fails_is_told_and_still_answers() -> None:
    world = World()

    async def main() -> None:
        raise RuntimeError("the world is no more")

    world.thread = PacedThread(world.loop, main, lambda what, why: world.failures.append(f"{what}: {why!r}"))
    world.thread.start()
    world.now()
    assert any("no more" in failure for failure in world.failures)
    assert world.thread.alive
    assert world.thread.stop(within=SOON)


def test_the_end_answers_everybody(world: World) -> None:
    step = world.grant(MOST_SECONDS)
    waiting = world.loop.submit(asyncio.Event().wait)
    world.thread.stop(within=SOON)
    with pytest.raises(Conflict):
        step.result(SOON)
    with pytest.raises(Over) as over:
        waiting.result(SOON)
    assert over.value.begun
    with pytest.raises(Over, match="ended"):
        world.now()


def test_a_world_that_does_not_listen_is_left_alone_in_time(world: World) -> None:
    release = threading.Event()

    async def hold() -> None:
        release.wait(SOON)

    held = world.loop.submit(hold)
    started = time.monotonic()
    assert not world.thread.stop(within=0.05)
    assert time.monotonic() - started < SOON / 2
    with pytest.raises(Over):
        held.result(SOON)
    release.set()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)
