"""Clients in several processes, recorded and checked: whatever happens to processes and servers, one store answers."""

from __future__ import annotations

import itertools
import os
import random
import time
from typing import TYPE_CHECKING

import pytest
from campaign import campaign, judge
from dose import dose

from hostler.testing.servers import EtcdCluster

if TYPE_CHECKING:
    from pathlib import Path

    from campaign import Campaign

SECONDS = 30
"""Seconds for as many calls as were asked for."""
BUSY = 1 if os.environ.get("HOSTLER_DOSE") else 8
"""How many times fewer calls may be answered beside all other tests."""
LOCAL = ("sqlite", "file")


def local_url(engine: str, directory: Path) -> str:
    (directory / "data").mkdir()
    return f"sqlite://{directory}/data/store.db" if engine == "sqlite" else f"file://{directory}/data/state.json"


def least(engine: str, calls: int) -> int:
    """What a run must at least have done to mean something; the file driver rewrites its file for each save."""
    return calls // BUSY // (4 if engine == "sqlite" else 10)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", LOCAL)
def test_four_processes_see_one_store(engine: str, tmp_path: Path) -> None:
    calls = dose(test=150, full=1500)
    with campaign(
        local_url(engine, tmp_path),
        tmp_path,
        count=4,
        clients=4,
        keys=4,
        calls=calls,
        seconds=dose(test=SECONDS, full=30),
    ) as running:
        history = running.history()
    violation = judge(history, least_done=least(engine, 16 * calls), title=f"{engine}, 4 processes")
    assert violation is None, str(violation)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", LOCAL)
def test_processes_that_are_killed_and_replaced_leave_one_store(engine: str, tmp_path: Path) -> None:
    rng = random.Random(5)
    seconds = dose(test=6, full=30)
    with campaign(
        local_url(engine, tmp_path), tmp_path, count=4, clients=3, keys=4, calls=1_000_000, seconds=seconds
    ) as running:
        killed = kill_and_replace(running, rng, until=time.monotonic() + seconds - 1)
        history = running.history()
    assert killed >= max(1, seconds // 2 // BUSY)
    violation = judge(history, least_done=100 * seconds // 6 // BUSY, title=f"{engine}, {killed} processes killed")
    assert violation is None, str(violation)


def kill_and_replace(running: Campaign, rng: random.Random, *, until: float) -> int:
    """Kill -9 a process, put another in its place, again and again; how many were killed."""
    killed = 0
    while time.monotonic() < until:
        time.sleep(rng.uniform(0.4, 1.0))
        victim = rng.choice(running.running)
        victim.kill()
        killed += victim.killed
        running.add()
    return killed


@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", LOCAL)
def test_what_is_refused_while_a_suspended_process_holds_the_lock_never_happens(engine: str, tmp_path: Path) -> None:
    """Deadlines pass while writers wait for their turn: Unavailable must mean that it is never made up for later."""
    rng = random.Random(6)
    seconds = dose(test=6, full=30)
    url = local_url(engine, tmp_path) + "?timeout=0.15"
    with campaign(url, tmp_path, count=3, clients=4, keys=4, calls=1_000_000, seconds=seconds) as running:
        time.sleep(1)
        until = time.monotonic() + seconds - 2.5
        while time.monotonic() < until:
            victim = rng.choice(running.running)
            victim.suspend()
            time.sleep(rng.uniform(0.1, 0.4))
            victim.resume()
            time.sleep(rng.uniform(0.02, 0.1))
        history = running.history()
    refused = sum(call.outcome == "failed" for call in history)
    violation = judge(
        history, least_done=40 * seconds // BUSY, title=f"{engine}, processes suspended, {refused} refused"
    )
    assert refused >= 3, "nobody was held up"
    assert violation is None, str(violation)


@pytest.mark.timeout(600)
def test_an_etcd_cluster_whose_leader_is_killed_and_suspended_is_one_store(tmp_path: Path) -> None:
    seconds = dose(test=12, full=60)
    with EtcdCluster(heartbeat_ms=50, election_ms=400) as cluster:
        url = cluster.url_of(cluster.endpoints, timeout="2")
        with campaign(url, tmp_path, count=3, clients=3, keys=6, calls=1_000_000, seconds=seconds) as running:
            blows = strike_leaders(cluster, random.Random(3), until=time.monotonic() + seconds - 3)
            history = running.history()
    assert blows["killed"] >= 1
    assert blows["suspended"] >= 1
    violation = judge(history, least_done=100 * seconds // BUSY, title=f"3-node etcd, leader {blows}")
    assert violation is None, str(violation)
    assert longest_gap(history) < (8.0 if BUSY == 1 else 20.0), "writes must go on soon after the leader is lost"


def strike_leaders(cluster: EtcdCluster, rng: random.Random, *, until: float) -> dict[str, int]:
    """Kill and restart, or suspend and resume, whoever leads."""
    blows = {"killed": 0, "suspended": 0}
    while time.monotonic() < until or not all(blows.values()):
        time.sleep(rng.uniform(0.5, 1.0))
        leader = cluster.leader()
        if blows["killed"] <= blows["suspended"]:
            cluster.kill(leader)
            time.sleep(rng.uniform(0.2, 1.0))
            cluster.restart(leader)
            blows["killed"] += 1
        else:
            cluster.suspend(leader)
            time.sleep(rng.uniform(1.0, 2.5))
            cluster.resume(leader)
            blows["suspended"] += 1
    return blows


def longest_gap(history: list) -> float:
    """Seconds in which no write was acknowledged."""
    ends = sorted(call.ended_at for call in history if call.outcome == "done" and call.writes)
    return max((later - earlier for earlier, later in itertools.pairwise(ends)), default=0) / 1e9


@pytest.mark.parametrize(("broken", "reason"), [("stale", "no order"), ("denial", "")])
def test_the_campaign_objects_to_clients_that_break_a_promise(broken: str, reason: str, tmp_path: Path) -> None:
    with campaign(
        local_url("sqlite", tmp_path), tmp_path, count=2, clients=3, keys=2, calls=120, seconds=SECONDS, broken=broken
    ) as running:
        history = running.history()
    violation = judge(history, least_done=100, title=f"broken on purpose: {broken}")
    assert violation is not None
    print(violation)
    assert reason in violation.reason
