"""D10, M11: instances move to nodes that join or return, one at a time, and calls are served meanwhile."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from dose import every_nth

from hostler.engine.deployments.state_machine import Limits
from hostler.keys.families import BRAKE, FENCING
from hostler.model.node import BrakeRecord, Lifecycle
from hostler.model.rollout import Phase

from .slice_stage import Crashing, Stage, play, spec

WEB = spec(instances=6)


async def spread(stage: Stage) -> list[int]:
    """How many instances each node has, in order."""
    return sorted(Counter(node for node, _ in await stage.ready("org:web:1")).values())


async def alone(stage: Stage, *, lead: bool = True) -> None:
    """Six instances on one node, and two more nodes that have just joined."""
    await stage.nodes("a")
    if lead:
        await stage.lead()
    await stage.apply(WEB)
    await stage.until(lambda: stage.settled(WEB))
    stage.low.clear()
    stage.most.clear()
    await stage.nodes("b", "c")


async def is_even(stage: Stage) -> bool:
    return await stage.settled(WEB) and await spread(stage) == [2, 2, 2]


def test_d10_instances_move_to_nodes_that_join_one_at_a_time_and_then_stay() -> None:
    async def story(stage: Stage) -> None:
        await alone(stage)
        await stage.until(lambda: is_even(stage), within=600)
        assert stage.low["org:web"] >= 6
        assert stage.most["org:web"] <= 7
        assert stage.controller is not None
        moves = stage.controller.counters["rebalanced"]
        assert moves == 4
        assert stage.controller.counters["moved away"] == 4
        await stage.clock.sleep(600)
        assert stage.controller.counters["rebalanced"] == moves
        deployment = await stage.deployment("org:web")
        assert deployment is not None
        assert deployment.move is None
        assert deployment.phase is Phase.DONE
        decision = await stage.decision("org:web:1")
        assert decision is not None
        assert "instances on" in decision.chosen[0].why

    play(story)


def test_d10_m11_a_node_that_returns_gets_its_share_again() -> None:
    async def story(stage: Stage) -> None:
        await stage.nodes("a", "b", "c")
        await stage.lead()
        await stage.apply(WEB)
        await stage.until(lambda: stage.settled(WEB))
        await stage.die("b")

        async def without() -> bool:
            return await stage.settled(WEB) and await spread(stage) == [3, 3]

        await stage.until(without)
        await stage.nodes("b")
        await stage.until(lambda: is_even(stage), within=600)

    play(story)


@pytest.mark.parametrize("against", ["never", "drain", "brake", "failing"])
def test_d10_nothing_moves_while(against: str) -> None:
    async def story(stage: Stage) -> None:
        if against == "never":
            stage.limits = Limits(rebalance_every=None)
        await alone(stage)
        if against == "drain":
            await stage.nodes("d")
            await stage.lifecycle("d", Lifecycle.DRAINING)
        if against == "brake":
            await stage.store.txn([], [BRAKE.put(BrakeRecord(nodes=("x", "y"), of=9, at=0.0), scope=FENCING)])
        if against == "failing":
            stage.refuses = lambda _node, _artifact, state: "it is broken" if state == "LOADING" else ""
            await stage.crash("a", "org:web:1", 1)
        await stage.clock.sleep(200)
        assert stage.controller is not None
        assert "rebalanced" not in stage.controller.counters

    play(story)


def test_d10_a_move_whose_new_instance_fails_is_given_up_and_no_instance_is_lost() -> None:
    async def story(stage: Stage) -> None:
        await alone(stage)
        stage.refuses = lambda node, _artifact, state: "no" if node != "a" and state == "ACTIVATING" else ""
        await stage.clock.sleep(300)
        assert stage.low["org:web"] >= 6
        assert stage.controller is not None
        assert stage.controller.counters["move given up"] >= 1
        stage.refuses = lambda _node, _artifact, _state: ""
        await stage.until(lambda: is_even(stage), within=1500)
        assert stage.low["org:web"] >= 6

    play(story)


def test_d10_a_slice_that_is_removed_in_the_middle_of_a_move_goes_with_all_of_its_instances() -> None:
    async def story(stage: Stage) -> None:
        await alone(stage)

        async def moving() -> bool:
            deployment = await stage.deployment("org:web")
            return deployment is not None and deployment.move is not None

        await stage.until(moving)
        await stage.remove()

        async def gone() -> bool:
            return not await stage.slices() and await stage.deployment("org:web") is None

        await stage.until(gone)

    play(story)


@pytest.mark.parametrize("after", [False, True])
def test_d10_leaders_that_die_at_each_transaction_lose_nothing(after: bool) -> None:
    async def story(stage: Stage, at: int) -> bool:
        await alone(stage)
        crashing = Crashing(stage.store, at=at, after=after)
        await stage.lead(crashing)

        async def done() -> bool:
            return await is_even(stage)

        for _ in range(4000):
            if crashing.died.is_set() or await done():
                break
            await stage.clock.sleep(0.2)
        died = crashing.died.is_set()
        await stage.lead()
        await stage.until(done, within=900)
        assert stage.low["org:web"] >= 6
        assert stage.most["org:web"] <= 7
        return died

    for at in every_nth(range(1, 60), 6):
        died: list[bool] = []

        async def told(stage: Stage, at: int = at, died: list[bool] = died) -> None:
            died.append(await story(stage, at))

        play(told)
        if not died[0]:
            break


@pytest.mark.parametrize("seed", range(4))
def test_d10_nodes_that_come_and_go_end_in_an_even_spread(seed: int) -> None:
    async def story(stage: Stage) -> None:
        rng = random.Random(seed)
        names = ["a", "b", "c", "d", "e"]
        for at, name in enumerate(names):
            await stage.nodes(name, rack=f"r{at % 2}")
        await stage.lead()
        await stage.apply(WEB)
        await stage.until(lambda: stage.settled(WEB))
        for _ in range(6):
            name = rng.choice(names[1:])
            await stage.die(name)
            await stage.clock.sleep(rng.uniform(0, 60))
            await stage.nodes(name, rack=f"r{names.index(name) % 2}")
            await stage.clock.sleep(rng.uniform(0, 60))

        async def even() -> bool:
            return await stage.settled(WEB) and await spread(stage) == [1, 1, 1, 1, 2]

        await stage.until(even, within=900)
        assert stage.controller is not None
        await stage.clock.sleep(100)
        moves = stage.controller.counters.get("rebalanced", 0)
        await stage.clock.sleep(900)
        assert stage.controller.counters.get("rebalanced", 0) == moves

    play(story)
