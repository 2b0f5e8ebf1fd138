"""What `hostler doctor` says of nodes, and of a store that nodes do not obey."""

from __future__ import annotations

from pathlib import Path

import pytest

from hostler.drivers.store.memory import MemoryStore
from hostler.entry.backend import ControlPlaneFile
from hostler.entry.doctor.examination import identity, nodes
from hostler.entry.doctor.host import shared_hosts
from hostler.keys.families import CLUSTER, MEMBER, MOVED
from hostler.model.inventory import Capacity
from hostler.model.migration import Moved
from hostler.model.node import Cluster, LastControlPlane, Lifecycle, NodeRecord
from hostler.ports.machine_driver import Level


@pytest.mark.parametrize("shares", ["", "ab", "b"], ids=["whole", "divided", "mixed"])
async def test_a_host_of_which_one_node_promises_all_and_another_a_share_is_named(shares: str) -> None:
    async with MemoryStore() as store:
        for node, host in (("a", "h1"), ("b", "h1"), ("c", "h2"), ("d", "")):
            record = NodeRecord(
                node=node,
                lifecycle=Lifecycle.ON_DUTY,
                capacity=Capacity(cpus=1, memory_mib=1),
                facts={"host": host, **({"share": "one of 2 nodes on its host"} if node in shares else {})},
                registered_at=0.0,
            )
            await store.txn([], [MEMBER.put(record, node=node)])
        found = await shared_hosts(store)
    told = (
        ["a and b are on one host: the former offer all of its capacity, the latter a share"] if shares == "b" else []
    )
    assert [finding.what for finding in found] == told


def member(node: str, **more: bool) -> NodeRecord:
    capacity = Capacity(cpus=1, memory_mib=1)
    return NodeRecord(node=node, lifecycle=Lifecycle.ON_DUTY, capacity=capacity, registered_at=0.0, **more)


async def test_nodes_that_are_awaited_after_a_copy_are_named_and_not_called_silent() -> None:
    async with MemoryStore() as store:
        for record in (member("a", awaited=True), member("b", awaited=True), member("c")):
            await store.txn([], [MEMBER.put(record, node=record.node)])
        silent, awaited = await nodes(store)
    assert (silent.what, silent.level) == ("c is unreachable", Level.WARN)
    assert awaited.what.startswith("a, b have not registered since this store was copied")
    assert "start their agents on this store" in awaited.next


async def test_a_store_that_was_moved_away_is_named_with_where_it_went(tmp_path: Path) -> None:
    async with MemoryStore() as store:
        assert await identity(store, None) == []
        cluster = CLUSTER.put(Cluster(id="k", created_at=1.0, epoch=3))
        await store.txn([], [cluster])
        memory = ControlPlaneFile(tmp_path)
        await memory.write(LastControlPlane(cluster="k", epoch=4))
        (older,) = await identity(store, memory)
        assert "older (epoch 3)" in older.what
        await memory.write(LastControlPlane(cluster="k", epoch=3))
        assert await identity(store, memory) == []
        await store.txn([], [MOVED.put(Moved(to="etcd://db:2379", started_at=1.0))])
        (moved,) = await identity(store, memory)
    assert moved.level is Level.FAIL
    assert "its records were moved to etcd://db:2379" in moved.what
    assert "hostler store activate" in moved.next
