"""Traces that are too old, or too many, go; the first ones first."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import TYPE_CHECKING, Any

import pytest
from controller_world import World, play

from hostler.engine.controllers.garbage_collection import BATCH, RECOUNT_EVERY, SETTLED, DecisionRetention
from hostler.engine.controllers.janitor import Janitor, RetentionLimits
from hostler.engine.decision_recorder import Tracer
from hostler.engine.runtime.env import ControllerEnv, say_nothing
from hostler.engine.runtime.guarded_writer import Why
from hostler.keys.families import SILENT, TRACE
from hostler.model.trace import Silent

if TYPE_CHECKING:
    from collections.abc import Callable

    from controller_world import Leader

DAY = 86400.0


class Earlier:
    """A clock that was right so long ago."""

    def __init__(self, world: World, ago: float) -> None:
        self._clock, self._ago = world.clock, ago

    def now(self) -> float:
        return self._clock.now()

    def wall(self) -> float:
        return self._clock.wall() - self._ago

    async def sleep(self, seconds: float) -> None:
        await self._clock.sleep(seconds)


def ids() -> Callable[[], str]:
    numbers = itertools.count(1)
    return lambda: f"{next(numbers):06d}"


async def filled(world: World, ago: float, number: int) -> None:
    """So many traces of so long ago."""
    tracer = Tracer(Earlier(world, ago), ids(), "machines")
    for start in range(0, number, 100):
        await world.raw.txn(
            [], [tracer.put(Why(what="w", why=""), subject="/s") for _ in range(start, min(number, start + 100))]
        )


async def kept(world: World) -> list[Any]:
    return [entry.value for entry in (await TRACE.list(world.raw)).entries]


async def led(world: World) -> Leader:
    """A leader without a janitor of its own."""
    leader = await world.leader("l1")
    for task in leader._tasks:
        if task.get_name() == "l1: janitor":
            task.cancel()
    return leader


async def cleaned(
    world: World, leader: Leader, *, traced: bool = True, files: Any = None, tell: Any = say_nothing, **limits: Any
) -> Janitor:
    numbers = ids()
    tracer = Tracer(world.clock, lambda: f"j{numbers()}", "janitor", kept=traced)
    env = ControllerEnv(
        store=leader.store, clock=world.clock, rng=random.Random(1), new_id=ids(), tracer=tracer, tell=tell
    )
    janitor = Janitor(env, leader.view, limits=RetentionLimits(**limits), files=files)
    await janitor.start(leader)
    leader._tasks.append(asyncio.create_task(janitor.run()))
    return janitor


def test_old_ones_go_in_rounds_that_leave_a_trace_each_and_young_ones_stay() -> None:
    async def story(world: World) -> None:
        leader = await led(world)
        await filled(world, 8 * DAY, 5 * BATCH + 7)
        await filled(world, 6 * DAY, 30)
        janitor = await cleaned(world, leader, traces_kept=7 * DAY)
        await asyncio.sleep(5)
        assert janitor.counters["forgotten_traces"] == 5 * BATCH + 7
        left = await kept(world)
        assert sum(trace.what == "w" for trace in left) == 30
        told = [trace for trace in left if trace.what == "forget_traces"]
        assert [trace.why for trace in told] == ["507 traces removed: older than 7 days"]

    play(story)


def test_no_more_than_so_many_are_kept_and_the_first_ones_go() -> None:
    async def story(world: World) -> None:
        leader = await led(world)
        await filled(world, 5 * DAY, 250)
        await filled(world, 1 * DAY, 150)
        janitor = await cleaned(world, leader, most_traces=220)
        await asyncio.sleep(5)
        left = await kept(world)
        assert 220 - BATCH < len(left) <= 220
        assert sum(trace.at > world.clock.wall() - 2 * DAY for trace in left if trace.what == "w") == 150
        gone = janitor.counters["forgotten_traces"]
        await asyncio.sleep(600)
        assert janitor.counters["forgotten_traces"] == gone, "what tells of it is not itself one too many"
        await filled(world, 0.0, 300)
        await asyncio.sleep(130)
        assert len(await kept(world)) <= 220, "what was added since is counted, too"

    play(story)


@pytest.mark.parametrize("most", [10, 1_000])
def test_what_was_counted_is_not_counted_again(most: int) -> None:
    async def story(world: World) -> None:
        await filled(world, DAY, 50)
        attic = DecisionRetention(world.raw, most=most)
        wall = world.clock.wall()
        assert [await attic.count(wall), await attic.count(wall)] == [50, 50]
        await filled(world, 0.0, 5)
        assert await attic.count(wall) == 50, "older ones may yet come between these"
        assert await attic.count(wall + 2 * SETTLED) == 55
        assert bool((await attic.oldest(world.clock.wall()))[0]) == (most < 55)
        attic.record_removal(45)
        assert await attic.count(wall) == 10

    play(story)


def test_what_came_late_and_stands_before_the_counted_ones_is_counted_in_the_end() -> None:
    """Writers are many, and each takes the time before it writes: what one writes late was never counted."""

    async def story(world: World) -> None:
        leader = await led(world)
        await filled(world, DAY, 150)
        janitor = await cleaned(world, leader, most_traces=200)
        await asyncio.sleep(5)
        for _ in range(10):
            await filled(world, 0.0, 1)
            await asyncio.sleep(70)
            late = Tracer(Earlier(world, 200.0), lambda: f"late{random.random()}", "machines")
            await world.raw.txn([], [late.put(Why(what="late", why=""), subject="/s") for _ in range(40)])
        await asyncio.sleep(2 * RECOUNT_EVERY)
        assert len(await kept(world)) <= 200
        assert janitor.counters["forgotten_traces"] >= 300

    play(story)


def test_where_none_are_kept_all_go_and_none_comes() -> None:
    async def story(world: World) -> None:
        leader = await led(world)
        await filled(world, 60.0, 250)
        silent = SILENT.put(Silent(registered_at=1.0, trace="x", at=1.0), node="r1-1")
        await world.raw.put(silent.key, silent.value)
        await leader.view.refresh(leader.view.silences)
        await cleaned(world, leader, traces_kept=0.0, traced=False)
        await asyncio.sleep(5)
        assert await kept(world) == []
        assert await SILENT.get(world.raw, node="r1-1") is None

    play(story)
