"""Clients in several processes, recorded and checked: whatever happens to processes and servers, one store answers."""

from __future__ import annotations

import itertools
import random
import time
from typing import TYPE_CHECKING

import pytest
from campaign import campaign, check, judge
from dose import dose
from harness import pace

from hostler.testing.servers import EtcdCluster, EtcdPace

if TYPE_CHECKING:
    from pathlib import Path

    from campaign import Campaign

LOCAL = ("sqlite", "file")


def local_url(engine: str, directory: Path) -> str:
    (directory / "data").mkdir()
    return f"sqlite://{directory}/data/store.db" if engine == "sqlite" else f"file://{directory}/data/state.json"


@pytest.mark.parametrize("engine", LOCAL)
def test_four_processes_see_one_store(engine: str, tmp_path: Path) -> None:
    calls = dose(test=100, full=1500)
    with campaign(
        local_url(engine, tmp_path), tmp_path, count=4, clients=4, keys=4, calls=calls, seconds=pace.patience(30)
    ) as entered:
        history = entered.history()
    check(history, least_done=16 * calls, since=entered.began, title=f"{engine}, 4 processes")


@pytest.mark.parametrize("engine", LOCAL)
def test_processes_that_are_killed_and_replaced_leave_one_store(engine: str, tmp_path: Path) -> None:
    rng = random.Random(5)
    seconds = dose(test=4, full=30)
    with campaign(
        local_url(engine, tmp_path), tmp_path, count=4, clients=3, keys=4, calls=1_000_000, seconds=seconds
    ) as entered:
        killed = kill_and_replace(entered, rng, until=entered.began + seconds - 1)
        history = entered.history()
    assert killed >= seconds // 2
    check(history, least_done=60 * seconds, since=entered.began, title=f"{engine}, {killed} processes killed")


def kill_and_replace(entered: Campaign, rng: random.Random, *, until: float) -> int:
    """Kill -9 a process, put another in its place, again and again; how many were killed."""
    killed = 0
    while time.monotonic() < until:
        time.sleep(rng.uniform(0.2, 0.8))
        victim = rng.choice(entered.running)
        victim.kill()
        killed += victim.killed
        entered.add()
    return killed


@pytest.mark.parametrize("engine", LOCAL)
def test_what_is_refused_while_a_suspended_process_holds_the_lock_never_happens(engine: str, tmp_path: Path) -> None:
    """Deadlines pass while writers wait for their turn: Unavailable must mean that it is never made up for later."""
    rng = random.Random(6)
    seconds = dose(test=4, full=30)
    url = local_url(engine, tmp_path) + "?timeout=0.15"
    with campaign(url, tmp_path, count=3, clients=4, keys=4, calls=1_000_000, seconds=seconds) as entered:
        time.sleep(0.3)
        while time.monotonic() < entered.began + seconds - 1:
            victim = rng.choice(entered.running)
            victim.suspend()
            time.sleep(rng.uniform(0.1, 0.4))
            victim.resume()
            time.sleep(rng.uniform(0.02, 0.1))
        history = entered.history()
    refused = sum(call.outcome == "failed" for call in history)
    check(history, least_done=40 * seconds, since=entered.began, title=f"{engine}, suspended, {refused} refused")
    assert refused >= 3, "nobody was held up"


def test_an_etcd_cluster_whose_leader_is_killed_and_suspended_is_one_store(tmp_path: Path) -> None:
    seconds = dose(test=9, full=60)
    with EtcdCluster(pace=EtcdPace(heartbeat_ms=50, election_ms=400)) as cluster:
        url = cluster.url_of(cluster.endpoints, timeout="2")
        shape = {"count": 3, "clients": 3, "keys": 6, "calls": 1_000_000, "seconds": seconds, "pause": 0.02}
        with campaign(url, tmp_path, **shape) as entered:
            blows = strike_leaders(cluster, random.Random(3), until=entered.began + seconds - 3)
            history = entered.history()
    assert blows["killed"] >= 1
    assert blows["suspended"] >= 1
    check(history, least_done=100 * seconds, since=entered.began, title=f"3-node etcd, leader {blows}")
    pace.check(longest_gap(history), 5.0, since=entered.began, what="the longest time without a write")


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
        local_url("sqlite", tmp_path), tmp_path, count=2, clients=3, keys=2, calls=120, seconds=30, broken=broken
    ) as entered:
        history = entered.history()
    violation = judge(history, least_done=500, since=entered.began, title=f"broken on purpose: {broken}")
    assert violation is not None
    print(violation)
    assert reason in violation.reason
