"""Light agents: the same story as with real ones, for next to nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from dose import seeds

from hostler.keys.families import ALIVE, MEMBER
from hostler.model.inventory_api import Drain
from hostler.model.node import DrainMode, Lifecycle
from hostler.model.vm import MachineState, OnNodeLoss, VmSpec
from hostler.model.vm_api import VmUpdate
from hostler.model.workload_api import WorkloadApply, WorkloadScale
from hostler.sim.fault import FAULTS
from hostler.sim.world import World, WorldConfig, run_world

from .evidence import run_named_world
from .test_world_faults import ANYWHERE, SIX
from .world_scene import broken, handles, make, overlaps, plan, running, said, there

if TYPE_CHECKING:
    from hostler.model.vm import VmHandle


def light(**changes: Any) -> WorldConfig:
    return plan(agents="light", **changes)


@pytest.mark.parametrize("name", FAULTS)
def test_whatever_breaks_all_is_well_when_it_is_over(name: str) -> None:
    async def story(world: World) -> None:
        await make(world, *SIX[:4])
        await running(world, 4)
        broken(world, name, **{"for": 50, **ANYWHERE.get(name, {})})
        await make(world, *SIX[4:])
        await world.sleep(51)
        await running(world, 6, within=200)
        assert not list(overlaps(world))
        assert not world.failures

    for seed in seeds(test=1, pool=20):
        run_named_world(light(boot_time=1.0 * (seed % 2)), story, seed=seed, run=name)


def test_handles_tell_the_same_as_those_of_real_agents() -> None:
    async def story(world: World) -> VmHandle:
        await make(world, "one")
        await running(world, 1)
        await world.ask(lambda d: d.vms.snapshot(d.request, "acme", "shop", "one", "s1"))
        await world.sleep(5)
        await world.ask(lambda d: d.vms.stop(d.request, "acme", "shop", "one"))
        await world.sleep(5)
        await world.ask(lambda d: d.vms.update(d.request, "acme", "shop", "one", VmUpdate(cpus=3)))
        await world.ask(lambda d: d.vms.restore(d.request, "acme", "shop", "one", "s1"))
        await world.ask(lambda d: d.vms.start(d.request, "acme", "shop", "one"))
        await world.sleep(5)
        await world.ask(lambda d: d.vms.reset(d.request, "acme", "shop", "one"))
        await world.sleep(5)
        (handle,) = await handles(world)
        return handle

    def told(handle: VmHandle) -> tuple[Any, ...]:
        assert handle.readiness is not None
        return (
            *(handle.state, handle.generation, handle.resets, handle.restored, handle.driver, handle.detail),
            *(handle.at_next_boot, {name: seen.state for name, seen in handle.snapshots.items()}),
        )

    real, cheap = run_world(plan(), story), run_world(light(), story)
    assert told(real) == told(cheap)
    assert cheap.state is MachineState.RUNNING


def test_an_hour_of_peace_costs_nothing() -> None:
    async def story(world: World) -> int:
        await world.sleep(100)
        for host in world.replicas.values():
            broken(world, "replica_killed", host.name, **{"for": 4000})
        await world.sleep(100)
        before = world.loop.steps
        await world.sleep(3600)
        assert not said(world, "silent")
        return world.loop.steps - before

    assert run_world(light(), story) < 20


def test_a_node_is_silent_when_its_lease_would_have_lapsed_and_not_if_it_is_back_before() -> None:
    async def story(world: World) -> None:
        await world.sleep(10)
        id_ = broken(world, "network", "r1/b1")
        await world.sleep(11)
        assert await ALIVE.get(world.store, node="r1-b1") is not None
        world.lift(id_)
        await world.sleep(60)
        assert not said(world, "silent")
        cut = world.clock.now()
        broken(world, "network", "r1/b1", **{"for": 60})
        await world.sleep(100)
        (silent,) = said(world, "silent")
        assert 11.25 <= silent.at - cut <= 15
        assert silent.cause == "r1/b1"
        (returned,) = said(world, "returned")
        assert returned.at - cut == pytest.approx(60)
        member = await MEMBER.get(world.store, node="r1-b1")
        assert member is not None
        assert member.value.lifecycle is Lifecycle.ON_DUTY

    run_world(light(), story)


def test_fenced_machines_stop_when_their_hold_would_have_ended() -> None:
    async def story(world: World) -> None:
        await make(world, *SIX)
        await running(world, 6)
        cut = world.clock.now()
        broken(world, "network", "r1/tor1", **{"for": 200})
        await world.sleep(120)
        assert len(there(world)) == 6
        ended = [host.intervals(vm)[-1][1] for node, host in world.blades.items() if "r1" in node for vm in host.vms()]
        assert ended
        assert all(end is not None and 26.25 <= end - cut <= 30 for end in ended)
        assert not list(overlaps(world))
        await world.sleep(100)
        await running(world, 6)

    run_world(light(), story)


def test_an_agent_that_is_killed_takes_its_node_again_and_its_machines_run_on() -> None:
    async def story(world: World) -> None:
        await make(world, *SIX)
        before = await running(world, 6)
        broken(world, "agent_killed", "r1")
        await world.sleep(60)
        assert await running(world, 6) == before
        assert not said(world, "silent")
        assert all(len(host.intervals(vm)) == 1 for host in world.blades.values() for vm in host.vms())

    run_world(light(), story)


def test_a_drain_makes_machines_elsewhere() -> None:
    async def story(world: World) -> None:
        await make(world, *SIX)
        node = (await running(world, 6))[0]
        await world.ask(lambda d: d.nodes.drain(d.request, node, Drain(mode=DrainMode.MOVE)))
        await world.sleep(60)
        assert node not in await running(world, 6)
        member = await MEMBER.get(world.store, node=node)
        assert member is not None
        assert member.value.lifecycle is Lifecycle.DECOMMISSIONED

    run_world(light(), story)


def test_workloads_grow_and_shrink_and_lose_a_rack() -> None:
    async def story(world: World) -> None:
        wanted = WorkloadApply(
            name="shop", instances=40, spec=VmSpec(cpus=1, memory_mib=256), on_node_loss=OnNodeLoss.RECREATE
        )
        await world.ask(lambda d: d.workloads.apply(d.request, wanted))
        await running(world, 40)
        broken(world, "power", "r1", **{"for": 100})
        await world.sleep(5)
        await world.ask(lambda d: d.workloads.scale(d.request, "shop", WorkloadScale(instances=30)))
        await running(world, 30, within=120)
        assert not any(node.startswith("r1") for node in there(world))
        await world.ask(lambda d: d.workloads.scale(d.request, "shop", WorkloadScale(instances=45)))
        await world.sleep(100)
        await running(world, 45)
        assert not list(overlaps(world))

    run_world(light(), story)
