"""Kill -9 at every step of provisioning and decommissioning: of whoever takes the request, of the leader, of everybody.

A step is each write of the store and each verb of the door, before it is sent and after it was done. `make soak` kills
at each of them both ways, and at those that only some runs come to; `make test` at some of them, others with each
commit. Every kill that is asked for comes. In the end there is what was asked for, made once and told once.
"""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import running
from crash_points.children import Launcher
from dose import dose, seeds
from lab_scene import LabScene
from lab_story import STEPS, Point, Rounds

from hostler.testing.ttl_servers import RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator

FULL = dose(test=0, full=1) > 0
SIDE_BY_SIDE = dose(test=1, full=3)
MOST = 100
"""Points that no verb has: more of them means that the enumeration does not end."""
STORIES = {"provision": ("provision", 0), "decommission": ("decommission", 0), "claim": ("provision", 1)}
"""The verb that is disturbed, and how many machines are kept ready ahead."""
KILLS = 4
"""Of each story in `make test`."""


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher("lab_launcher", Path(__file__).parent) as launcher:
        running.PIDS.add(launcher.pid)
        yield launcher
    running.PIDS.discard(launcher.pid)


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


class Kills:
    """What is left to be tried: a point, and whether everybody dies there. `certain`: it must come to it."""

    def __init__(self, story: str) -> None:
        every = [(point, everybody) for point in STEPS[story] for everybody in (False, True)]
        random.Random(story).shuffle(every)  # so that those of one commit are of several kinds
        self._left = [(*every[number % len(every)], True) for number in seeds(test=KILLS, pool=len(every))]
        self._known = set(STEPS[story])
        self.done: list[str] = []
        self.not_met: list[Point] = []
        """Points that some runs come to, and that of their kill did not."""

    def add(self, points: list[Point]) -> None:
        """In the full dose also those that only some runs come to."""
        more = [point for point in dict.fromkeys(points) if point not in self._known] if FULL else []
        self._known.update(more)
        self._left += [(point, everybody, False) for point in more for everybody in (False, True)]
        assert len(self._known) <= MOST, f"more than {MOST} points: {self._known}"

    async def work(self, rounds: Rounds) -> None:
        while self._left:
            point, everybody, certain = self._left.pop(0)
            what = f"{point[0]}#{point[1]}, {'everybody' if everybody else 'alone'}"
            begun = time.monotonic()
            try:
                passed, killed = await rounds.run(point, everybody=everybody)
            except BaseException as error:
                error.add_note(f"killed at {what}")
                raise
            self.add(passed)
            assert killed or not certain, f"nobody came to {what}; they came to {passed}"
            if killed:
                self.done.append(f"{what}: {time.monotonic() - begun:.1f} s")
            else:
                self.not_met.append(point)


@pytest.mark.parametrize("story", STORIES)
async def test_killed_at_every_step_what_was_asked_for_is_there_once(
    story: str, launcher: Launcher, redis: RedisServer, tmp_path: Path
) -> None:
    verb, warm = STORIES[story]
    kills = Kills(story)

    async def side(number: int) -> LabScene:
        url = redis.url.replace("/0?", f"/{1 + number + SIDE_BY_SIDE * list(STORIES).index(story)}?")
        async with LabScene(launcher, tmp_path / f"scene-{number}", url, warm=warm) as scene:
            rounds = Rounds(scene, verb)
            if number == 0:
                passed, _ = await rounds.run(None)
                assert set(passed) >= set(STEPS[story]), f"undisturbed it does not come to what it must: {passed}"
                kills.add(passed)
            await kills.work(rounds)
            scene.check()
            scene.witness.check()
        return scene

    async with asyncio.TaskGroup() as group:
        sides = [group.create_task(side(number)) for number in range(SIDE_BY_SIDE)]
    scenes = [task.result() for task in sides]
    print(f"\n{story}: {sum(scene.killed for scene in scenes)} processes killed; not met: {kills.not_met};", end=" ")
    print(f"ended unasked: {[scene.ended for scene in scenes]}", *kills.done, sep="\n  ")


@pytest.mark.parametrize("when", ["before", "after"])
async def test_who_takes_over_from_the_dead_may_die_of_it(
    when: str, launcher: Launcher, redis: RedisServer, tmp_path: Path
) -> None:
    url = redis.url.replace("/0?", f"/{12 + ('before', 'after').index(when)}?")
    async with LabScene(launcher, tmp_path / "scene", url) as scene:
        rounds = Rounds(scene, "provision")
        await scene.arm(("after take", 1))
        await rounds.ask("provision", "ada")
        await scene.until(lambda: _nothing_but(bool(scene.crashes), "somebody took it"))
        await scene.disarm()
        await scene.arm((f"{when} release", 1))
        await scene.until(lambda: _nothing_but(bool(scene.crashes), "somebody took over"))
        await scene.disarm()
        await rounds.done("provision", "ada")
        await rounds.ask("decommission", "ada")
        await rounds.done("decommission", "ada")
        assert scene.killed >= 2
        scene.witness.check()


async def _nothing_but(holds: bool, what: str) -> str | None:
    return None if holds else f"not yet: {what}"
