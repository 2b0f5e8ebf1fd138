"""The storage fails under replicas that never give up: at no instant do two of them get a guarded write through."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from pathlib import Path

import pytest
from apart import run_apart
from dose import dose
from harness import pace
from troupe import START, Stage

from hostler.testing.servers import EtcdCluster, EtcdPace, EtcdServer

FAKETIME = ("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1", "/usr/lib/faketime/libfaketime.so.1")
HOUR = 3600
STEADY = 8.0
"""The ttl where a leader must not lose its leadership for a reason of the machine: none of its stalls is that long."""
SLACK = 1.0
"""Seconds beyond what the protocol allows, at the machine's own pace."""


async def test_a_server_that_stands_still_for_longer_than_the_ttl_ends_the_leadership(
    own_etcd: EtcdServer, tmp_path: Path
) -> None:
    async with Stage(own_etcd.url, tmp_path) as stage:
        leader, waiting = await stage.troupe(2)
        fence = await stage.counted()
        own_etcd.suspend()
        try:
            suspended_at = time.monotonic()
            assert await leader.ends(within=stage.ttl * 4 + START) == 1
            # It believes for at most the ttl and lives for at most a quarter more.
            took = time.monotonic() - suspended_at
            pace.check(took - stage.ttl * 1.25, SLACK, since=suspended_at, what="beyond its time, its end")
            assert waiting.running, "who stands by waits for the storage to come back"
        finally:
            own_etcd.resume()
        await stage.led_by_another(fence, within=START)
        assert await stage.leader() is waiting
        await stage.counted()
        stage.check_tally()


async def test_a_short_absence_of_the_server_is_ridden_over(tmp_path: Path) -> None:
    with EtcdServer() as server:
        async with Stage(server.url, tmp_path, ttl=8.0) as stage:
            leader, waiting = await stage.troupe(2)
            fence = await stage.counted()
            server.restart()
            assert await stage.counted(10) == fence
            server.suspend()
            await asyncio.sleep(stage.ttl / 4)
            server.resume()
            assert await stage.counted(10) == fence
            assert leader.running
            assert waiting.running
            stage.check_fences()


async def test_replicas_that_never_give_up_on_a_server_that_is_killed_and_suspended_again_and_again(
    tmp_path: Path,
) -> None:
    with EtcdServer() as server:
        async with Stage(server.url, tmp_path) as stage:
            for name in ("one", "two", "three"):
                stage.start(f"{name}:1", mode="stubborn")
            await stage.counted()
            for round_ in range(dose(test=2, full=20)):
                if round_ % 2:
                    server.kill()
                    await asyncio.sleep(stage.ttl * 1.2)
                    server.restart()
                else:
                    server.suspend()
                    await asyncio.sleep(stage.ttl * 1.2)
                    server.resume()
                await stage.written(10)
            assert len({tally.fence for tally in stage.tallies}) > 1, "no leadership was ever lost"
            stage.check_fences()


async def test_the_leading_member_of_three_is_suspended_and_killed(tmp_path: Path) -> None:
    with EtcdCluster(3, pace=EtcdPace(heartbeat_ms=50, election_ms=500)) as cluster:
        async with Stage(cluster.url, tmp_path) as stage:
            for name in ("one", "two", "three"):
                stage.start(f"{name}:1", mode="stubborn")
            await stage.counted()
            for _ in range(dose(test=1, full=10)):
                member = cluster.leader()
                cluster.suspend(member)
                await stage.written(20)
                cluster.resume(member)
                await stage.written(20)
                member = cluster.leader()
                cluster.kill(member)
                await stage.written(20)
                cluster.restart(member)
                await stage.written(20)
            stage.check_fences()


async def test_a_member_cut_off_from_the_others_lets_nobody_write_twice(tmp_path: Path) -> None:
    """In namespaces of its own, which end with the process: the leading member still reaches clients, not its peers."""
    script = Path(__file__).parent / "partition_process.py"
    rounds = dose(test=1, full=10)
    found = await run_apart(script, tmp_path, rounds, within=pace.patience(60 + 20 * rounds))
    assert found["writes"] >= 40, found
    assert found["fences"] >= 1, found
    assert found["refused_while_cut_off"], found


@pytest.mark.parametrize("place", ["etcd", "sqlite", "redis"], indirect=True)
async def test_the_clock_of_a_replica_may_jump(stage: Stage, tmp_path: Path) -> None:
    library = next((path for path in FAKETIME if Path(path).exists()), None)
    assert library is not None, "libfaketime: not installed; run scripts/setup test"
    clock = tmp_path / "clock"
    clock.write_text("+0")
    settings = [f"LD_PRELOAD={library}", f"FAKETIME_TIMESTAMP_FILE={clock}"]
    settings += ["FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1", "FAKETIME_DONT_RESET=1"]
    stage.ttl = STEADY
    async with stage:
        leader = stage.start("jumping:1", before=("env", *settings))
        await leader.says("leading with fence")
        waiting = stage.start("steady:1", before=("env", *settings))
        await waiting.says("standing by; jumping:1 leads")
        assert await stage.leader() is leader  # the witness has seen it, too
        fence, led = stage.fence, stage.terms()
        for jump in (f"+{HOUR}", f"-{HOUR}", f"+{10 * HOUR}"):
            clock.write_text(jump)
            await asyncio.sleep(stage.ttl * 0.4)  # longer than from one renewal to the next
            assert leader.running, leader.tail()
            stage.safe((stage.fence, stage.terms()) == (fence, led), "another led meanwhile")
        leader.kill()
        killed_at = time.monotonic()
        change = await stage.led_by_another(fence, within=START)
        pace.check(change.at - killed_at - stage.ttl, stage.ttl / 3, since=killed_at, what="beyond the ttl, a takeover")
        waiting.stop()
        assert await waiting.ends(within=START) == 0
        said_at = datetime.strptime(waiting.tail(1).split()[0], "%H:%M:%S").astimezone()
        apart = abs((said_at.hour - datetime.now().astimezone().hour) % 24)
        assert 9 <= apart <= 11, f"its clock did not jump: {waiting.tail(1)}"
        stage.check_tally()
