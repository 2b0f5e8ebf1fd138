"""What `hostler doctor` says of nodes that share a host."""

from __future__ import annotations

import pytest

from hostler.drivers.store.memory import MemoryStore
from hostler.entry.doctor_machines import shared_hosts
from hostler.keys.node import MEMBER
from hostler.model.inventory import Capacity
from hostler.model.node import Lifecycle, NodeRecord


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
    told = ["a and b are on one host: the former promise all of it, the latter a share"] if shares == "b" else []
    assert [finding.what for finding in found] == told
