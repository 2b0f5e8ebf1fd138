"""Nodes die under load, agents come back, on a real etcd: not one call fails, and only what runs counts."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from dose import dose
from harness.pace import patience
from slice_stage import SETTLED, ClusterStage, Load, workers

from hostler.model.deployment import SliceSpec
from hostler.testing.servers import EtcdServer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

RATE = 200.0
ROUNDS = dose(test=1, full=10)
INSTANCES = 4
EXAMPLE = "org.example:slice:1.0.0"
SLICE = """
from hostler.slices import method

@method
def process() -> int:
    return 1
"""


async def test_a_node_is_killed_under_load_and_an_agent_comes_back(tmp_path: Path) -> None:
    with EtcdServer() as etcd:
        async with ClusterStage(tmp_path, etcd, nodes=("node-1", "node-2", "node-3")) as stage:
            await _look_at_the_contract(stage)
            probe = await stage.push("1.0.0")
            assert (await stage.settled("shop", SliceSpec(artifact=probe, instances=INSTANCES))).settled

            for number in range(ROUNDS):
                victim, *others = (*stage.nodes[2 - number % 3 :], *stage.nodes[: 2 - number % 3])
                async with Load(stage.client, RATE) as load:
                    await _answered_by(stage, load, victim)
                    stage.kill_node(victim)
                    await _served_by(stage, others)
                load.check_none_failed()
                await stage.agent(victim).says("registered\n")

            stage.agents[others[0]].kill()
            assert workers(tmp_path / others[0]), "slices outlive their agent"
            await stage.agent(others[0]).says("registered\n")
            await _served_by(stage, stage.nodes)

            async def nothing_is_left_over() -> bool:
                return len(workers(tmp_path)) == INSTANCES

            await stage.until(nothing_is_left_over)
            assert {(await stage.who())["worker"] for _ in range(50)} == workers(tmp_path)


async def _answered_by(stage: ClusterStage, load: Load, node: str) -> None:
    """Wait until it is under load."""

    async def is_so() -> bool:
        return sum(answer["node"] == node for _, answer in load.answers) > 20

    await stage.until(is_so)


async def _served_by(stage: ClusterStage, nodes: Sequence[str]) -> None:
    """Wait until all instances are there, on some of those nodes, each under a number of its own."""

    async def is_so() -> bool:
        found = await stage.endpoints()
        numbers = sorted(view.instance for view in found)
        return numbers == list(range(1, INSTANCES + 1)) and {view.node for view in found} <= set(nodes)

    await stage.until(is_so)
    status = await stage.settled("shop")
    assert status.settled, status


async def _look_at_the_contract(stage: ClusterStage) -> None:
    """Its examples, word for word, as `etcdctl` shows them; what is not in the document stands apart."""
    before = time.time()
    assert await stage.push("1.0.0", SLICE, "slice") == EXAMPLE
    assert (await stage.settled("production", SliceSpec(artifact=EXAMPLE, instances=3))).settled
    found = _families(stage.etcd)
    assert found.pop("blueprints/production") == {"slices": [{"artifact": EXAMPLE, "instances": 3}]}
    numbers = {}
    for node in stage.nodes:
        slice_ = found.pop(f"slices/{node}/{EXAMPLE}")
        assert before - 1 <= slice_.pop("timestamp") <= time.time() + 1
        ((number, instance),) = slice_.pop("instances").items()
        assert instance.pop("why")
        assert instance == {"state": "ACTIVE"}
        assert slice_ == {"state": "ACTIVE", "methods": ["process"]}
        numbers[int(number)] = node
    for number in (1, 2, 3):
        endpoint = found.pop(f"endpoints/{EXAMPLE}/process:{number}")
        assert endpoint.pop("address").startswith("127.0.0.1:")
        assert endpoint == {"node-id": numbers[number], "instance": number, "state": "ACTIVE"}
    assert found == {}

    await stage.client.blueprints.delete("production")
    assert await stage.client.blueprints.wait("production", gone=True, within=patience(SETTLED)) is None
    assert _families(stage.etcd) == {}


def _families(etcd: EtcdServer) -> dict[str, Any]:
    """All that is stored, but for our own extensions and other contracts."""
    lines = etcd.ctl("get", "", "--from-key").splitlines()
    return {
        key: json.loads(value) for key, value in zip(lines[::2], lines[1::2]) if not key.startswith(("/", "sysvvm/"))
    }
