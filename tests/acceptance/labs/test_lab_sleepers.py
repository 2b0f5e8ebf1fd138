"""Who is suspended in the middle of a step of a lab, and woken once others have done it, writes nothing any more.

That is what a host does that stands still. The leader's writes are fenced, a worker's compare its presence, and what is
shown in Redis is of a revision: each is tried before and after every step.
"""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import running
from crash_points.children import Launcher
from dose import dose
from harness.pace import patience
from lab_scene import LabScene
from lab_story import CLAIM, LAST_STEP, MADE, STEPS, Point, Rounds

from hostler.testing.servers import EtcdServer
from hostler.testing.ttl_servers import RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from crash_points.children import Child

POINTS = dose(test=4, full=1000)
REFILL = "before txn +names +vms"
FIRST: list[Point] = [
    (REFILL, 1),
    ("before txn +labs of a worker", 1),
    (f"before {CLAIM}", 1),
    ("before publish available", 1),
]
"""Those of `make test`: what only the fence, the presence, or the revision stops."""


@pytest.fixture
def launcher() -> Iterator[Launcher]:
    with Launcher("lab_launcher", Path(__file__).parent) as launcher:
        running.PIDS.add(launcher.pid)
        yield launcher
    running.PIDS.discard(launcher.pid)


async def test_who_sleeps_in_a_step_and_wakes_after_it_was_done_writes_nothing(
    launcher: Launcher, tmp_path: Path
) -> None:
    with RedisServer() as redis, EtcdServer() as etcd:  # who sleeps with SQLite's lock in hand holds up everybody
        async with LabScene(launcher, tmp_path / "scene", redis.url, store=etcd.url, warm=1) as scene:
            rounds = Rounds(scene, "provision")
            points = list(dict.fromkeys([*FIRST, *STEPS["claim"]]))[:POINTS]
            users = (f"sleeper-{number}" for number in itertools.count(1))
            for point in points:
                assert await asleep(scene, rounds, next(users), point), f"nobody came to {point}"
            print(f"\nended unasked: {scene.ended}", *points, sep="\n  ")
            scene.check()
            scene.witness.check()


async def asleep(scene: LabScene, rounds: Rounds, user: str, point: Point) -> bool:
    """Whether somebody came there and slept, while others did what it was about to do."""
    witness = scene.witness
    await scene.up()
    await scene.arm(point, sleeps=True)
    await rounds.ask("provision", user)
    await scene.until(lambda: nobody_sleeps(scene, user))
    await scene.came(patience(LAST_STEP))
    sleepers = list(scene.crashes)
    for child in scene.children.values():
        if child not in sleepers and child.role != "agent":
            await child.disarm()  # long before it takes over
    await rounds.done("provision", user)
    await scene.until(scene.not_ready_ahead)
    before = witness.writes, witness.machine_writes
    passed = [len(sleeper.passed) for sleeper in sleepers]
    for sleeper in sleepers:
        os.kill(sleeper.pid, signal.SIGCONT)
    for sleeper, count in zip(sleepers, passed):
        await awake(sleeper, point[0], count)
    await scene.disarm()
    await scene.up()
    assert await witness.missing() is None
    written = witness.writes, witness.machine_writes
    witness.safe(written == before, f"{point}: something was written by who slept: {before}, then {written}")
    await rounds.ask("decommission", user)
    await rounds.done("decommission", user)
    return bool(sleepers)


async def nobody_sleeps(scene: LabScene, user: str) -> str | None:
    """None: somebody does, or nobody will, for all is done."""
    over = len(scene.witness.told.get(user, ())) == len(MADE) and await scene.not_ready_ahead() is None
    return None if scene.crashes or over else f"nobody came there: {user}"


async def awake(sleeper: Child, name: str, count: int) -> None:
    """Until it has done what it was about to do, or begins anew; and has ended, if it led: it leads no more.

    `count`: how many points it had passed when it was woken.
    """
    when, _, what = name.partition(" ")
    ends = {f"after {what}" if when == "before" else "before keep_alive", "after grant"}
    await sleeper.until(lambda: any(point in ends for _, point, _ in sleeper.passed[count:]))
    if sleeper.told("leading ") is not None:
        await sleeper.until(lambda: False)
