"""What `hostler doctor` says of nodes that share a host."""

from __future__ import annotations

import pytest

from hostler.drivers.store.memory import MemoryStore
from hostler.entry.doctor_machines import shared_hosts
from hostler.keys.node import MEMBER
from hostler.model.inventory import Capacity
from hostler.model.node import Lifecycle, NodeRecord


@pytest.mark.parametrize("share", [{}, {"share": "one of 2 nodes on its host"}], ids=["whole", "divided"])
async def test_nodes_that_each_promise_their_whole_host_are_named(share: dict[str, str]) -> None:
    async with MemoryStore() as store:
        for node, host in (("a", "h1"), ("b", "h1"), ("c", "h2"), ("d", "")):
            record = NodeRecord(
                node=node,
                lifecycle=Lifecycle.ON_DUTY,
                capacity=Capacity(cpus=1, memory_mib=1),
                facts={"host": host, **share},
                registered_at=0.0,
            )
            await store.txn([], [MEMBER.put(record, node=node)])
        found = await shared_hosts(store)
    assert [finding.what for finding in found] == (
        [] if share else ["a, b are on one host, and each promises all of it"]
    )
