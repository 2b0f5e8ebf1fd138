"""A leader that stands still for longer than its leadership: it wakes up, writes nothing, and is gone at once."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from dose import dose
from harness import pace
from troupe import START, ReplicaProcess, Stage, until

STORES = ["etcd", "sqlite"]
SLACK = 1.0
"""Seconds beyond what the protocol allows, at the machine's own pace."""


@pytest.mark.parametrize("place", [*STORES, "redis"], indirect=True)
async def test_a_suspended_leader_is_succeeded_and_when_it_wakes_it_writes_nothing_and_dies(stage: Stage) -> None:
    async with stage:
        for _ in range(dose(test=1, full=20)):
            await stage.troupe(2)
            sleeper = await stage.leader()
            fence = stage.fence
            suspended_at = stage.suspend(sleeper)
            change = await stage.led_by_another(fence, within=stage.ttl + START)
            pace.check(
                change.at - suspended_at - stage.ttl, SLACK, since=suspended_at, what="beyond the ttl, a takeover"
            )
            successor = await stage.leader()
            assert successor is not sleeper
            if stage.keeps_data:
                await stage.counted()

            sleeper.resume()
            woken_at = time.monotonic()
            assert await sleeper.ends(within=START) == 1
            pace.check(time.monotonic() - woken_at, stage.ttl / 4 + SLACK, since=woken_at, what="its end")
            if stage.keeps_data:
                await stage.counted()
            assert successor.running
            stage.check_tally()
            successor.stop()
            assert await successor.ends(within=START) == 0


@pytest.mark.parametrize("place", STORES, indirect=True)
async def test_what_a_sleeper_goes_on_trying_to_write_is_refused_by_the_guard_alone(stage: Stage) -> None:
    """No killer and no look at a deadline here: the process goes on writing with a leadership that is over."""
    async with stage:
        sleeper = await _put_to_sleep_and_wake(stage, "stubborn")
        await sleeper.says("was refused after its loss", within=START)
        await stage.counted(20)
        stage.safe(not sleeper.said("wrote after its loss"), f"a sleeper wrote: {sleeper.tail()}")
        stage.check_fences()


@pytest.mark.parametrize("place", STORES, indirect=True)
async def test_without_the_guard_the_same_sleeper_does_harm(stage: Stage) -> None:
    """So the test above can fail."""
    async with stage:
        sleeper = await _put_to_sleep_and_wake(stage, "careless")
        await sleeper.says("wrote after its loss", within=START)
        await until(lambda: _out_of_order(stage), START, "the harm is seen")
        with pytest.raises(AssertionError, match="an older leader got through"):
            stage.check_fences()


def _out_of_order(stage: Stage) -> bool:
    fences = [tally.fence for tally in stage.tallies]
    return fences != sorted(fences)


async def _put_to_sleep_and_wake(stage: Stage, mode: str) -> ReplicaProcess:
    sleeper = stage.start("one:1", mode=mode)
    await sleeper.says("leading with fence")
    other = stage.start("two:1", mode=mode)
    fence = await stage.counted()
    stage.suspend(sleeper)
    await stage.led_by_another(fence, within=START + stage.ttl)
    await stage.counted()
    assert other.running
    sleeper.resume()
    return sleeper


@pytest.mark.parametrize("place", [*STORES], indirect=True)
async def test_a_leader_whose_event_loop_spins_is_dead_a_quarter_of_the_ttl_after_its_loss(stage: Stage) -> None:
    async with stage:
        spinner = stage.start("one:1", mode="counting")
        await spinner.says("leading with fence")
        successor = stage.start("two:1", mode="counting")
        fence = await stage.counted()
        await successor.says("standing")
        asked_at = time.monotonic()
        spinner.signal(signal.SIGUSR1)
        spun_at = await spinner.says("spinning")
        assert await spinner.ends(within=stage.ttl * 3 + START) == 1
        ended_at = time.monotonic()
        # Its leadership ended one ttl after its last renewal, which was a quarter of the ttl before it span, or on a
        # busy machine half of it.
        assert stage.ttl * 0.75 < ended_at - asked_at
        pace.check(ended_at - spun_at - stage.ttl * 1.25, SLACK, since=spun_at, what="beyond its time, its end")
        assert spinner.said("was lost and the process did not stop in time"), spinner.tail()
        await stage.led_by_another(fence, within=START)
        await stage.counted()
        assert successor.running
        stage.check_tally()


async def test_a_process_suspended_in_mid_commit_holds_up_the_embedded_store_until_it_is_killed(
    tmp_path: Path,
) -> None:
    """docs/decisions/0004: nobody writes meanwhile, so nobody leads; nothing is written twice or lost."""
    async with Stage(f"sqlite://{tmp_path}/store.db", tmp_path) as stage:
        sleeper = stage.start("one:1", mode="counting")
        await sleeper.says("leading with fence")
        successor = stage.start("two:1", mode="counting")
        fence = await stage.counted()
        await _suspend_while_it_holds_the_lock(stage, sleeper.pid)
        await asyncio.sleep(stage.ttl * 1.5)
        stage.safe(stage.fence == fence, "somebody led although nobody can write")
        assert successor.running
        sleeper.kill()
        await stage.led_by_another(fence, within=START)
        await stage.counted()
        stage.check_fences()
        stage.check_tally()


async def _suspend_while_it_holds_the_lock(stage: Stage, pid: int) -> None:
    inode = os.stat(stage.url.removeprefix("sqlite://") + ".lock").st_ino
    end = time.monotonic() + pace.patience(START)
    process = next(process for process in stage.processes if process.pid == pid)
    while True:
        process.suspend()
        for line in Path("/proc/locks").read_text().splitlines():
            fields = line.split()
            if (
                "->" not in fields
                and fields[1] == "FLOCK"
                and int(fields[4]) == pid
                and fields[5].endswith(f":{inode}")
            ):
                return
        process.resume()
        assert time.monotonic() < end, "never caught in a commit"
        await asyncio.sleep(0.003)
