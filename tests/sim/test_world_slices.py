"""Blades answer the commands of slices, those with a light agent like those with a real one; and what the invariants of
slices find. Nobody leads here: the test is the leader, and writes what it likes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from hostler.engine.control_plane import ControlPlane
from hostler.engine.deployments.state_machine import changed_record
from hostler.keys.families import BLUEPRINT, ENDPOINT, SLICE
from hostler.model.deployment import Blueprint, Endpoint, SliceInstance, SliceRecord, SliceState
from hostler.ports.slices import Life
from hostler.sim.fault import AgentKilled, SliceCrash, SliceRefuses
from hostler.sim.invariants import Invariants
from hostler.sim.scenario.scenario import INVARIANTS
from hostler.sim.world import Factories, World, run_world

from .deployments import blueprint, plan, spec

NODE, CART = "r1-b1", "org.shop:cart:1.0.0"
S = SliceState


class Idle:
    """In the place of the leader's part."""

    name = "deployments"

    async def start(self, standing: object) -> None: ...

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def stop(self) -> None: ...


class Undeployed(ControlPlane):
    """Its leaders deploy nothing."""

    def deployment_controller(self, _: Any) -> Any:
        return Idle()


NOBODY = Factories(plane=Undeployed)


async def tell(world: World, state: SliceState, *numbers: int, node: str = NODE, artifact: str = CART) -> None:
    entry = await SLICE.get(world.store, node=node, artifact=artifact)
    record = None if entry is None else entry.value
    old = {} if record is None else record.each()
    changes = {n: replace(old[n], state=state) if n in old else SliceInstance(state=state) for n in numbers}
    after = changed_record(record, changes, at=world.clock.wall())
    assert after is not None
    await world.store.txn([], [SLICE.put(after, node=node, artifact=artifact)])


async def states(world: World, node: str = NODE, artifact: str = CART) -> dict[int, SliceInstance]:
    entry = await SLICE.get(world.store, node=node, artifact=artifact)
    return {} if entry is None else dict(entry.value.each())


async def shown(world: World) -> list[tuple[str, int]]:
    found = (await ENDPOINT.list(world.store)).entries
    return sorted((entry.value.node_id, entry.value.instance) for entry in found)


@pytest.mark.parametrize("agents", ["real", "light"])
def test_a_blade_walks_its_slices_through_all_states(agents: str) -> None:
    async def story(world: World) -> None:
        watch = Invariants(world, INVARIANTS)
        await world.sleep(10)
        await tell(world, S.LOAD, 1, 2)
        await world.sleep(5)
        assert {n: one.state for n, one in (await states(world)).items()} == {1: S.LOADED, 2: S.LOADED}
        assert await shown(world) == []
        await tell(world, S.ACTIVATE, 1, 2)
        await world.sleep(5)
        assert {n: one.state for n, one in (await states(world)).items()} == {1: S.ACTIVE, 2: S.ACTIVE}
        assert await shown(world) == [(NODE, 1), (NODE, 2)]
        assert world.blades[NODE].slices_there() == {(CART, 1): Life.ACTIVE, (CART, 2): Life.ACTIVE}

        world.inject(SliceCrash(on="r1/b1"))
        await world.sleep(0.1)
        assert not any(one.ready for one in (await states(world)).values())
        assert await shown(world) == []
        await world.sleep(5)
        assert all(one.ready and one.restarts == 1 for one in (await states(world)).values())
        assert await shown(world) == [(NODE, 1), (NODE, 2)]

        world.inject(AgentKilled(on="r1/b1"))  # what runs is adopted
        await world.sleep(20)
        assert all(one.state is S.ACTIVE and one.restarts == 1 for one in (await states(world)).values())
        assert await shown(world) == [(NODE, 1), (NODE, 2)]

        await tell(world, S.DEACTIVATE, 1)
        await world.sleep(5)
        assert (await states(world))[1].state is S.LOADED
        assert await shown(world) == [(NODE, 2)]
        await tell(world, S.UNLOAD, 1)
        await world.sleep(5)
        assert list(await states(world)) == [2]
        assert world.blades[NODE].slices_there() == {(CART, 2): Life.ACTIVE}

        world.blades[NODE].lose_power("the test")  # and at once on again: its key is still there
        world.blades[NODE].start()
        await world.sleep(20)
        assert (await states(world))[2].state is S.FAILED
        assert await shown(world) == []
        watch.stop()
        assert not [found for verdict in watch.verdicts() for found in verdict.violations]

    run_world(plan(2, agents=agents), story, seed=1, parts=NOBODY)


@pytest.mark.parametrize("agents", ["real", "light"])
@pytest.mark.parametrize("step", ["load", "activate"])
def test_what_refuses_fails_and_says_why(agents: str, step: str) -> None:
    async def story(world: World) -> None:
        world.inject(SliceRefuses(artifact="org.shop:cart", step=step))  # type: ignore[arg-type]
        await world.sleep(10)
        await tell(world, S.LOAD, 1)
        await world.sleep(5)
        if step == "activate":
            await tell(world, S.ACTIVATE, 1)
            await world.sleep(5)
        (one,) = (await states(world)).values()
        assert one.state is S.FAILED
        assert "simulated" in one.why

    run_world(plan(1, agents=agents), story, seed=2, parts=NOBODY)


async def _illegal(world: World) -> None:
    record = SliceRecord(state=S.ACTIVE, timestamp=1, instances={1: SliceInstance(state=S.ACTIVE)})
    await world.store.txn([], [SLICE.put(record, node="r2-b1", artifact=CART)])


async def _twice(world: World) -> None:
    await tell(world, S.LOAD, 1)
    await tell(world, S.LOAD, 1, node="r2-b1")


async def _left_shown(world: World) -> None:
    endpoint = Endpoint(node_id=NODE, instance=7, state=S.ACTIVE)
    await world.store.txn([], [ENDPOINT.put(endpoint, artifact=CART, method="call", instance=7)])


async def _shown_of_a_dead_node(world: World) -> None:
    await tell(world, S.LOAD, 1)
    await world.sleep(5)
    await tell(world, S.ACTIVATE, 1)
    await world.sleep(5)
    endpoint = Endpoint(node_id=NODE, instance=1, state=S.ACTIVE)  # on no lease
    await world.store.txn([], [ENDPOINT.put(endpoint, artifact=CART, method="call", instance=1)])
    world.blades[NODE].lose_power("the test")


async def _needs_nothing(world: World) -> None:
    wanted: Blueprint = blueprint(spec("1.0.0", 1, needs=("org.shop:prices",)))
    await world.store.txn([], [BLUEPRINT.put(wanted, blueprint="shop")])
    await world.sleep(20)
    await tell(world, S.LOAD, 1)
    await world.sleep(5)
    await tell(world, S.ACTIVATE, 1)


async def _too_few(world: World) -> None:
    wanted: Blueprint = blueprint(spec("1.0.0", 2, min_available=2))
    await world.store.txn([], [BLUEPRINT.put(wanted, blueprint="shop")])
    await tell(world, S.LOAD, 1, 2)
    await world.sleep(5)
    await tell(world, S.ACTIVATE, 1, 2)
    await world.sleep(20)
    await tell(world, S.DEACTIVATE, 1)


@pytest.mark.parametrize(
    ("wrong", "invariant"),
    [
        (_illegal, "slice_moves_legal"),
        (_twice, "instance_numbers_unique"),
        (_illegal, "endpoints_before_active"),
        (_left_shown, "no_unreachable_endpoint"),
        (_shown_of_a_dead_node, "no_unreachable_endpoint"),
        (_needs_nothing, "needs_kept"),
        (_too_few, "min_available_kept"),
    ],
)
def test_what_must_not_be_is_found(wrong: object, invariant: str) -> None:
    async def story(world: World) -> None:
        watch = Invariants(world, INVARIANTS)
        await world.sleep(10)
        await wrong(world)  # type: ignore[operator]
        await world.sleep(60)
        watch.stop()
        assert invariant in [verdict.invariant for verdict in watch.verdicts() if not verdict.held]

    run_world(plan(2, agents="light"), story, seed=3, parts=NOBODY)
