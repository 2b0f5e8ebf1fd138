"""A constant load while leaders and agents are killed and endpoints go: no call fails, and none goes where none may.

Replicas and agents are processes of their own on a real etcd. The calls come through a replica that does not lead.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dose import dose
from harness import pace
from harness.artefacts import safe
from slice_stage import ClusterStage, Load, workers
from store_log import StoreLog

from hostler import Client
from hostler.keys.families import ENDPOINT
from hostler.model.deployment import Gate, SliceSpec, Stage, Strategy, StrategyKind
from hostler.testing.servers import EtcdServer, ServerFailed

if TYPE_CHECKING:
    from pathlib import Path

    from up_process import HostlerProcess

RATE = 200.0
ROUNDS = dose(test=1, full=10)
INSTANCES = 4
TIMES = ("--node-ttl", 20, "--fencing-time", 40)
"""An agent comes back sooner than that: its node was never away."""
WATCHED = 0.5
"""Seconds in which whoever follows the store has heard of a change, at the machine's own pace."""


async def test_leaders_and_agents_are_killed_and_no_call_fails(tmp_path: Path) -> None:
    with EtcdServer() as etcd:
        async with ClusterStage(tmp_path, etcd, times=TIMES) as stage, StoreLog(etcd.url) as log:
            versions = [await stage.push(f"1.{number}.0") for number in range(ROUNDS + 1)]
            assert (await stage.settled("shop", SliceSpec(artifact=versions[0], instances=INSTANCES))).settled
            leader = stage.processes[0]
            for number in range(1, ROUNDS + 1):
                other, began = stage.replica(), time.monotonic()
                async with (
                    Client(await other.url("serving"), stage.token, retries=0) as client,
                    Load(client, RATE) as load,
                ):
                    stage.client = client
                    await _upgraded(stage, versions[number], leader)
                    await _agent_came_back(stage, log, load)
                    if number > 1:  # as `test_load_planned.py` in one process; `make test` has no time for it here
                        await _drained(stage)
                        await _there_and_back(stage, versions[number - 1], versions[number])
                    await _withdrawn(stage, load)
                load.check_none_failed()
                pace.check(log.lateness(load.answers), WATCHED, since=began, what="a call to what was gone")
                safe(not log.illegal, f"states that may not follow each other: {log.illegal}")
                assert log.moves > number * INSTANCES * 10
                leader = other


async def _upgraded(stage: ClusterStage, version: str, leader: HostlerProcess) -> None:
    """A rolling upgrade whose leader is killed in the middle."""
    await stage.apply("shop", SliceSpec(artifact=version, instances=INSTANCES))

    async def has_begun() -> bool:
        return len({view.artifact for view in await stage.endpoints()}) == 2

    await stage.until(has_begun)
    leader.kill()
    status = await stage.settled("shop")
    assert status.settled, status
    endpoints = await stage.endpoints()
    assert [view.artifact for view in endpoints] == [version] * INSTANCES
    assert {view.node for view in endpoints} == set(stage.nodes)


async def _agent_came_back(stage: ClusterStage, log: StoreLog, load: Load) -> None:
    """What ran while the agent did not is the same afterwards, and hangs on the agent's new session."""
    endpoints = await stage.endpoints()
    node, numbers = endpoints[-1].node, [view.instance for view in endpoints]
    before, leases = workers(stage.folder / node), log.leases(node)
    assert before
    stage.agents[node].kill()
    await stage.agent(node).says("registered\n")

    async def hangs_on_another() -> bool:
        return not log.leases(node) & leases

    await stage.until(hangs_on_another)
    for lease in leases:
        try:
            stage.etcd.ctl("lease", "revoke", f"{lease:x}")
        except ServerFailed as error:  # on a slow machine it has ended by itself before
            if "lease not found" not in str(error):
                raise
    since = time.monotonic()

    async def all_answer() -> bool:
        return {answer["worker"] for at, answer in load.answers if at > since} == workers(stage.folder)

    await stage.until(all_answer)
    assert workers(stage.folder / node) == before
    assert [view.instance for view in await stage.endpoints()] == numbers
    assert not any(one.restarts for view in await stage.slices() for one in view.instances)


async def _drained(stage: ClusterStage) -> None:
    node = (await stage.endpoints())[0].node
    await stage.client.nodes.drain(node)

    async def is_empty() -> bool:
        return node not in {view.node for view in await stage.slices()}

    await stage.until(is_empty)
    await stage.client.nodes.activate(node)
    assert len(await stage.endpoints()) == INSTANCES


async def _there_and_back(stage: ClusterStage, old: str, new: str) -> None:
    """A canary to the end, and a rollback."""
    stages = (Stage(weight=25, hold=1.0), Stage(weight=50, hold=1.0))
    strategy = Strategy(type=StrategyKind.CANARY, stages=stages, gate=Gate(min_calls=20))
    number = (await stage.client.blueprints.status("shop")).number
    assert (await stage.settled("shop", SliceSpec(artifact=old, instances=INSTANCES, strategy=strategy))).settled
    assert [view.artifact for view in await stage.endpoints()] == [old] * INSTANCES
    await stage.client.blueprints.rollback("shop", number)
    assert (await stage.settled("shop")).settled
    assert [view.artifact for view in await stage.endpoints()] == [new] * INSTANCES


async def _withdrawn(stage: ClusterStage, load: Load) -> None:
    """An instance that would still answer gets no call once its endpoint is gone."""
    first = (await stage.endpoints())[0]
    stage.etcd.ctl("del", ENDPOINT.fill(artifact=first.artifact, method="who", instance=first.instance))
    gone = time.monotonic()

    def called() -> list[int]:
        heard = gone + WATCHED * pace.slowdown(gone)
        return [answer["instance"] for _, answer in load.answers if answer["at"] > heard]

    async def often_enough() -> bool:
        return len(called()) > 20 * INSTANCES

    await stage.until(often_enough)
    allowed = set(range(1, INSTANCES + 1)) - {first.instance}
    safe(set(called()) <= allowed, f"instances {set(called())} were called, {first.instance} too", calls=load.answers)
    assert set(called()) == allowed
