"""Redis stands still or dies under two replicas: a short absence changes nothing, a long one hands over, once."""

from __future__ import annotations

import itertools
import re
import time
from typing import TYPE_CHECKING

import pytest
from harness import pace
from troupe import START, Stage, until

from hostler.testing.ttl_servers import RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness import pace
from troupe import ReplicaProcess

SLACK = 1.0
"""Seconds beyond what the protocol allows, at the machine's own pace."""


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """One for each test: it does not come out as it went in."""
    with RedisServer() as server:
        yield server


async def passes(seconds: float, since: float) -> None:
    await until(lambda: time.monotonic() > since + seconds, seconds + START, f"{seconds:g} s pass")


async def leads_on(stage: Stage, leader: ReplicaProcess, fence: int) -> None:
    """It leads for longer than a record lives that is not renewed, with one fence, and nobody else does."""
    began = time.monotonic()
    await until(
        lambda: not leader.running or stage.fence != fence or time.monotonic() > began + stage.ttl * 1.25,
        stage.ttl * 1.25 + START,
        "a ttl passes",
    )
    assert leader.running, leader.tail()
    stage.safe([fence for _, fence in led(stage)] == [fence], "another led meanwhile")
    assert await stage.leader() is leader


def led(stage: Stage) -> list[tuple[str, int]]:
    """Who led with which fence, in order, as the witness saw it."""
    seen = [(change.record.holder, change.record.fence) for change in stage.changes if change.record]
    return [term for term, _ in itertools.groupby(seen)]


def check_terms(stage: Stage) -> None:
    """Each fence that ever led is higher than those before it, and one process led with it."""
    fences = [fence for _, fence in led(stage)]
    stage.safe(all(before < after for before, after in itertools.pairwise(fences)), f"fences went back: {fences}")
    said = [
        int(fence)
        for process in stage.processes
        for fence in re.findall(r"leading with fence (\d+)$", process.log.read_text(), re.MULTILINE)
    ]
    stage.safe(sorted(said) == fences, f"{fences} led, {sorted(said)} believed so: {stage.processes}")


async def hands_over(stage: Stage, leader: ReplicaProcess, waiting: ReplicaProcess, *, gone_at: float) -> None:
    """The leader ends by itself while the server is away, and who stands by waits for it to come back."""
    assert await leader.ends(within=stage.ttl * 4 + START) == 1
    # It believes for at most the ttl and lives for at most a quarter more.
    pace.check(time.monotonic() - gone_at - stage.ttl * 1.25, SLACK, since=gone_at, what="beyond its time, its end")
    await passes(stage.ttl * 1.5, since=gone_at)
    assert waiting.running, waiting.tail()
    stage.safe(len(led(stage)) == 1, "somebody led while the server was away")


async def succeeded(stage: Stage, fence: int, successor: ReplicaProcess) -> None:
    """The successor leads with a higher fence, and hands over to a newcomer in good order."""
    change = await stage.led_by_another(fence, within=START)
    assert change.record is not None
    assert await stage.leader() is successor
    await successor.says("leading with fence")
    newcomer = stage.start("new:1")
    await newcomer.says(f"leads with fence {change.record.fence}")
    successor.stop()
    await stage.led_by_another(change.record.fence, within=START)
    await newcomer.says("leading with fence")
    assert await successor.ends(within=START) == 0
    check_terms(stage)
    assert len(led(stage)) == 3


async def test_a_redis_that_stands_still_for_less_than_half_of_the_ttl_is_ridden_over(
    redis: RedisServer, tmp_path: Path
) -> None:
    async with Stage(redis.url, tmp_path, ttl=6.0) as stage:
        leader, waiting = await stage.troupe(2)
        fence = stage.fence
        redis.suspend()
        try:
            await passes(stage.ttl * 0.4, since=time.monotonic())
        finally:
            redis.resume()
        await leads_on(stage, leader, fence)
        assert waiting.running
        check_terms(stage)


async def test_a_redis_that_stands_still_for_longer_than_the_ttl_hands_over_once_it_is_back(
    redis: RedisServer, tmp_path: Path
) -> None:
    async with Stage(redis.url, tmp_path) as stage:
        leader, waiting = await stage.troupe(2)
        fence = stage.fence
        redis.suspend()
        try:
            await hands_over(stage, leader, waiting, gone_at=time.monotonic())
        finally:
            redis.resume()
        await succeeded(stage, fence, waiting)


async def test_a_redis_that_is_killed_and_restarted_at_once_with_its_data_is_ridden_over(
    redis: RedisServer, tmp_path: Path
) -> None:
    async with Stage(redis.url, tmp_path, ttl=6.0) as stage:
        leader, waiting = await stage.troupe(2)
        fence = stage.fence
        redis.kill()
        redis.restart()
        await leads_on(stage, leader, fence)
        assert waiting.running
        check_terms(stage)


async def test_a_redis_that_is_dead_for_longer_than_the_ttl_counts_on_from_the_fence_it_kept(
    redis: RedisServer, tmp_path: Path
) -> None:
    async with Stage(redis.url, tmp_path) as stage:
        leader, waiting = await stage.troupe(2)
        fence = stage.fence
        redis.kill()
        await hands_over(stage, leader, waiting, gone_at=time.monotonic())
        redis.restart()
        await succeeded(stage, fence, waiting)
