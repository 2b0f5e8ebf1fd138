"""The benchmark of deployments on a real etcd: a bound is measured beside it, and nothing of that is left."""

from __future__ import annotations

import hostler
from bench.deployments import Plan, measure
from bench.deployments_bare import ROOT
from hostler.keys.families import ENDPOINT
from hostler.testing.servers import EtcdServer


async def test_what_is_reached_stands_beside_what_a_bare_client_reaches() -> None:
    with EtcdServer() as server:
        plan = Plan(parts=("etcd",), nodes=4, blueprints=3, etcd=server.url, etcd_instances=60)
        done, cost, sent = await measure(plan, lambda _: None)
        async with hostler.open_store(server.url) as store:
            assert len((await store.range(ENDPOINT.prefix())).items) == 60
            assert not (await store.range(ROOT, limit=1)).items
    assert done.other is not None
    assert done.ratio == done.found / done.other > 0
    assert cost.other is not None
    assert 0 < cost.other < cost.found  # nothing decides there, and nothing is read
    assert 12 <= sent.found <= 60 * 6 + 20  # each node answers four times at least
