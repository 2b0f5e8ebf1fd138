"""A cluster of three that loses members: the store goes on, and says what it does not know."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import pytest
from dose import dose
from harness import pace
from harness.artefacts import safe

from hostler.drivers.store.etcd import EtcdStore
from hostler.errors import Unavailable, Uncertain
from hostler.ports.store import Put, Version
from hostler.testing.servers import EtcdCluster, EtcdPace, free_ports
from hostler.wiring import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hostler.ports.store import Store

T = TypeVar("T")
WITHIN = 15.0
"""Seconds for what takes a few; waits are longer where the machine is slow."""


@pytest.fixture
def cluster() -> Iterator[EtcdCluster]:
    with EtcdCluster(pace=EtcdPace(heartbeat_ms=50, election_ms=500)) as started:
        yield started


async def test_the_first_endpoint_may_be_dead(cluster: EtcdCluster) -> None:
    [nobody] = free_ports(1)
    url = cluster.url_of([f"127.0.0.1:{nobody}", *cluster.endpoints], timeout="60")
    async with open_store(url) as store, asyncio.timeout(pace.patience(10)):
        await store.put("first/dead", b"1")
        async with store.watch("first/") as watch:
            await store.put("first/dead", b"2")
            assert (await anext(watch)).kv.value == b"2"
        lease = await store.grant(60)
        await lease.keep_alive()


@pytest.mark.parametrize("what", ["kill", "suspend"])
async def test_the_loss_of_the_member_in_use_costs_at_most_one_call(what: str, cluster: EtcdCluster) -> None:
    leader = cluster.leader()
    victim = (leader + 1) % 3
    endpoints = [cluster.endpoints[(victim + step) % 3] for step in range(3)]
    async with EtcdStore(endpoints, timeout=4.0) as store, store.watch("loss/") as watch:
        await store.put("loss/a", b"0")
        assert (await anext(watch)).kv.value == b"0"
        lease = await store.grant(60)
        await lease.keep_alive()
        getattr(cluster, what)(victim)
        first = await asyncio.gather(store.put("loss/a", b"1"), return_exceptions=True)
        assert isinstance(first[0], int | Uncertain)
        await store.put("loss/a", b"2")  # the one that is lost would not answer in time
        assert await store.get("loss/a") is not None
        await lease.keep_alive()
        values = [(await asyncio.wait_for(anext(watch), pace.patience(WITHIN))).kv.value]
        while values[-1] != b"2":
            values.append((await asyncio.wait_for(anext(watch), pace.patience(WITHIN))).kv.value)
        assert values in ([b"2"], [b"1", b"2"])


async def test_a_member_without_its_cluster_refuses_at_once_and_the_call_goes_elsewhere(cluster: EtcdCluster) -> None:
    """The last member standing has no leader: it says so, having done nothing."""
    leader = cluster.leader()
    alone, others = (leader + 1) % 3, [leader, (leader + 2) % 3]
    async with EtcdStore([cluster.endpoints[alone]], timeout=3.0) as store:
        await store.put("alone", b"before")
        for other in others:
            cluster.kill(other)
        outcomes: list[object] = [None]
        async with asyncio.timeout(pace.patience(WITHIN)):
            while not isinstance(outcomes[-1], Unavailable):
                outcomes += await asyncio.gather(store.put("alone", b"during"), return_exceptions=True)
        assert all(isinstance(outcome, Uncertain | Unavailable) for outcome in outcomes[1:])
        for other in others:
            cluster.restart(other, wait=False)
        await _in_thread(cluster.wait_healthy)
        await _until_written(store, "alone", b"after")


@pytest.mark.parametrize("what", ["kill", "suspend"])
async def test_writes_while_the_leader_is_lost_are_made_once_or_said_to_be_uncertain(
    what: str, cluster: EtcdCluster
) -> None:
    for turn in range(dose(test=1, full=10)):
        prefix = f"lead/{what}/{turn}/"
        async with open_store(cluster.url + "?timeout=3") as store, store.watch(prefix) as watch:
            leader = cluster.leader()
            outcomes: dict[str, str] = {}
            stop = asyncio.Event()
            writers = [
                asyncio.create_task(_write_until(store, f"{prefix}{number}-", outcomes, stop.is_set))
                for number in range(8)
            ]
            async with asyncio.timeout(pace.patience(WITHIN)):
                while len(outcomes) < 50:
                    await asyncio.sleep(0.02)
            getattr(cluster, what)(leader)
            new = await _in_thread(cluster.leader)
            assert new != leader
            done = len(outcomes)
            async with asyncio.timeout(pace.patience(WITHIN)):
                while sum(o == "written" for o in list(outcomes.values())[done:]) < 50:
                    await asyncio.sleep(0.02)
            stop.set()
            await asyncio.gather(*writers)
            if what == "suspend":
                cluster.resume(leader)
            else:
                cluster.restart(leader)
            await _in_thread(cluster.wait_healthy)
            page = await store.range(prefix)
            there = {kv.key: kv for kv in page.items}
            for key, outcome in outcomes.items():
                safe(outcome != "written" or key in there, f"{key} was acknowledged and is lost", outcomes=outcomes)
                safe(
                    outcome != "unavailable" or key not in there, f"{key} was said not to be written", outcomes=outcomes
                )
            safe(all(kv.version == 1 for kv in there.values()), "a write was made twice", there=there)
            seen = [(await asyncio.wait_for(anext(watch), pace.patience(WITHIN))).kv for _ in there]
            assert [kv.key for kv in seen] == [kv.key for kv in sorted(there.values(), key=lambda kv: kv.mod_revision)]


async def test_a_watch_moves_on_when_its_member_falls_silent(cluster: EtcdCluster) -> None:
    """Nothing but the watch runs, so that only the connection's own pings can find it out."""
    victim = (cluster.leader() + 1) % 3
    endpoints = [cluster.endpoints[(victim + step) % 3] for step in range(3)]
    others = [endpoint for endpoint in endpoints if endpoint != cluster.endpoints[victim]]
    async with EtcdStore(endpoints) as store, EtcdStore(others) as other, store.watch("silent/") as watch:
        member = (await store.status()).details["member"]
        async with EtcdStore(endpoints[:1]) as suspended:
            assert (await suspended.status()).details["member"] == member
        cluster.suspend(victim)
        await other.put("silent/a", b"")
        assert (await asyncio.wait_for(anext(watch), pace.patience(WITHIN))).kv.key == "silent/a"


async def test_a_lease_outlives_its_leader_and_ends_within_what_is_declared(cluster: EtcdCluster) -> None:
    async with open_store(cluster.url) as store:
        asked = time.monotonic()
        lease = await store.grant(5)
        granted = time.monotonic()
        await store.put("leased", b"", lease=lease)
        cluster.kill(cluster.leader())
        while await _get(store, "leased") is not None:
            await asyncio.sleep(0.05)
        ended = time.monotonic()
        # The server granted it at some instant in between.
        safe(ended - asked >= lease.ttl, f"a lease of {lease.ttl} s lived for {ended - asked:.2f} s at most")
        most = lease.ttl + store.lease_lateness(lease.ttl)
        pace.check(ended - granted, most, since=granted, what="the life of a lease")


async def _write_until(store: Store, prefix: str, outcomes: dict[str, str], stopped: Callable[[], bool]) -> None:
    number = 0
    while not stopped():
        key, number = f"{prefix}{number}", number + 1
        try:
            result = await store.txn([Version(key) == 0], [Put(key, b"once")], [Put(key, b"twice")])
        except Uncertain:
            outcomes[key] = "uncertain"
        except Unavailable:
            outcomes[key] = "unavailable"
        else:
            assert result.succeeded
            outcomes[key] = "written"


async def _until_written(store: Store, key: str, value: bytes) -> None:
    async with asyncio.timeout(pace.patience(WITHIN)):
        while True:
            try:
                await store.put(key, value)
            except (Unavailable, Uncertain):
                continue
            return


async def _in_thread(look: Callable[[], T]) -> T:
    """Wait for the cluster while the event loop goes on."""
    with ThreadPoolExecutor(1) as pool:
        return await asyncio.get_running_loop().run_in_executor(pool, look)


async def _get(store: Store, key: str) -> object:
    try:
        return await store.get(key)
    except Unavailable:
        return "unknown"
