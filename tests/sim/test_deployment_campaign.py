"""Deployments under churn, over many seeds: people apply, scale, roll back and delete blueprints and drain nodes, while
nodes, agents, leaders and slices die. Nothing must ever be as it must not be, and in the end all is as it was wished.

A large world (1,000 nodes, 50 blueprints), and small ones that are cheap enough for many more seeds: one with light
agents, one with real ones, whose way to the store is bad now and then.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Literal

import pytest
from dose import seeds

from hostler.errors import NotFound, Refused
from hostler.model.deployment import Blueprint, SliceSpec, Stage, Strategy, StrategyKind
from hostler.model.inventory_api import Drain
from hostler.sim.fault import (
    AgentKilled,
    AnswerLost,
    BladeCrash,
    LeaderKilled,
    Partition,
    SliceCrash,
    SliceRefuses,
    StoreSlow,
    StoreUnavailable,
    WatchLost,
)
from hostler.sim.world import BladeConfig, World, WorldConfig
from hostler.sim.world.replica import Rate

from .deployments import Watch, apply, delete, rollback
from .evidence import run_named_world

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

LARGE_SEEDS = [1 + seed for seed in seeds(test=1, pool=6, full=500)]
"""Two seconds of processor time each."""
SMALL_SEEDS = [1 + seed for seed in seeds(test=2, pool=14, full=2_000)]
"""Half a second each."""


class Churn:
    """What happens in one story: drawn from its seed, one thing after the other."""

    def __init__(self, world: World, seed: int, *, blueprints: int, most: int) -> None:
        self._weather = world.plan.agents == "real"
        self._world, self._rng = world, random.Random(f"{seed} churn")
        self._names = [f"bp{number}" for number in range(blueprints)]
        self._said: dict[str, Blueprint] = {}
        self._numbers: dict[str, int] = {}
        self._version = 0
        self._most = most
        """Instances of a slice; of one in four, for most have a few."""
        self._drained: dict[str, None] = {}
        self._lost: dict[str, str] = {}
        """Nodes that never come back, and the fault."""
        self.refused: dict[str, None] = {}
        """Slices of which a version could not be started for a while."""

    async def begin(self) -> None:
        for name in self._names:
            await self._apply(name)

    async def go_on(self, moments: int) -> None:
        acts: list[tuple[int, Callable[[], Coroutine[Any, Any, None]]]] = [
            *((8, self._change), (2, self._roll_back), (2, self._delete), (3, self._drain), (2, self._activate)),
            *((4, self._crash_node), (2, self._cut_off), (3, self._kill_agent), (4, self._crash_slices)),
            *((2, self._kill_leader), (1, self._refuse), (1, self._lose_node)),
            *(((3, self._bad_weather), (1, self._outage)) if self._weather else ()),
        ]
        for _ in range(moments):
            await self._world.sleep(self._rng.expovariate(1 / 4.0))
            (chosen,) = self._rng.choices([act for _, act in acts], [weight for weight, _ in acts])
            await chosen()

    async def calm(self) -> None:
        """Everybody may work again, but for nodes that are lost: at least one that has slices, most likely. What is
        drained stays so, and so does one more that has slices."""
        await self._lose_node()
        await self._set_duty(self._node(), drained=True)
        for id_ in tuple(self._world.faults):
            if id_ not in self._lost.values():
                self._world.lift(id_)

    async def fill_up(self) -> None:
        """All nodes are on duty again."""
        for node in tuple(self._drained):
            await self._set_duty(node, drained=False)

    # People

    async def _apply(self, name: str) -> None:
        said = self._blueprint(name)
        await apply(self._world, name, said)
        self._said[name] = said
        self._numbers[name] = self._numbers.get(name, 0) + 1

    def _blueprint(self, name: str) -> Blueprint:
        """Two slices, the second of which needs the first."""
        rng, before = self._rng, self._said.get(name)
        slices = []
        for which in ("a", "b"):
            base = f"org.{name}:{which}"
            old = None if before is None else before.spec_of(base)
            if old is None or rng.random() < 0.6:
                self._version += 1
                artifact = f"{base}:1.0.{self._version}"
            else:
                artifact = old.artifact
            instances = rng.randint(1, self._most if rng.random() < 0.25 else 6)
            slices.append(
                SliceSpec(
                    artifact=artifact,
                    instances=instances,
                    needs=(f"org.{name}:a",) if which == "b" else (),
                    min_available=rng.randint(0, instances),
                    strategy=self._strategy(),
                    node_labels={"zone": rng.choice("ab")} if rng.random() < 0.2 else {},
                )
            )
        return Blueprint(slices=tuple(slices))

    def _strategy(self) -> Strategy:
        kind = self._rng.choice(
            (StrategyKind.ROLLING, StrategyKind.ROLLING, StrategyKind.CANARY, StrategyKind.BLUE_GREEN)
        )
        return Strategy(
            type=kind,
            max_surge=self._rng.randint(1, 3),
            max_unavailable=self._rng.randint(0, 1),
            stages=(Stage(weight=10, hold=3), Stage(weight=50, hold=3)) if kind is StrategyKind.CANARY else (),
            bake=2.0,
            keep=5.0,
        )

    async def _change(self) -> None:
        await self._apply(self._rng.choice(self._names))

    async def _roll_back(self) -> None:
        name = self._rng.choice(self._names)
        if name in self._said:
            try:
                await rollback(self._world, name, self._rng.randint(1, self._numbers[name]))
            except (NotFound, Refused):  # that revision is a deletion, or the same as now
                return
            self._numbers[name] += 1

    async def _delete(self) -> None:
        name = self._rng.choice(self._names)
        if self._said.pop(name, None) is not None:
            await delete(self._world, name)
            self._numbers[name] += 1

    async def _drain(self) -> None:
        if len(self._drained) < len(self._world.blades) // 5:
            await self._set_duty(self._node(), drained=True)

    async def _activate(self) -> None:
        if self._drained:
            await self._set_duty(self._rng.choice(list(self._drained)), drained=False)

    async def _set_duty(self, node: str, *, drained: bool) -> None:
        if drained:
            if self._is_last(node):
                return
            self._drained[node] = None
            await self._world.ask(lambda d: d.nodes.drain(d.request, node, Drain()))
        else:
            self._drained.pop(node, None)
            await self._world.ask(lambda d: d.nodes.activate(d.request, node))

    # What breaks

    def _node(self) -> str:
        """Most often one that has slices."""
        nodes = {node: host for node, host in self._world.blades.items() if node not in self._lost}
        full = [node for node, host in nodes.items() if host.slices_there()] if self._rng.random() < 0.8 else []
        return self._rng.choice(full or list(nodes))

    def _blade(self) -> str:
        return self._world.blades[self._node()].component

    def _is_last(self, node: str) -> bool:
        """Whether nothing else would take what wants the labels of this one."""
        blades = self._world.blades
        return not any(
            blades[other].blade.labels == blades[node].blade.labels
            for other in blades
            if other != node and other not in self._drained and other not in self._lost
        )

    async def _lose_node(self) -> None:
        """One of those that have most slices."""
        there = {
            node: len(host.slices_there())
            for node, host in self._world.blades.items()
            if node not in self._drained and node not in self._lost and not self._is_last(node)
        }
        if there and len(self._lost) < max(2, len(self._world.blades) // 20):
            node = max(there, key=lambda node: (there[node], node))
            self._lost[node] = self._world.inject(BladeCrash(on=self._world.blades[node].component, lasting=True))

    async def _crash_node(self) -> None:
        self._world.inject(BladeCrash(on=self._blade(), for_=self._rng.choice((1.0, 10.0, 40.0))))

    async def _cut_off(self) -> None:
        self._world.inject(Partition(on=self._blade(), for_=self._rng.choice((2.0, 15.0, 40.0))))

    async def _kill_agent(self) -> None:
        self._world.inject(AgentKilled(on=self._blade()))

    async def _crash_slices(self) -> None:
        name = self._rng.choice(self._names)
        self._world.inject(SliceCrash(artifact=f"org.{name}:{self._rng.choice('ab')}"))

    async def _kill_leader(self) -> None:
        self._world.inject(LeaderKilled())

    async def _bad_weather(self) -> None:
        lasts = self._rng.choice((3.0, 20.0))
        kinds = (
            AnswerLost(chance=0.2, for_=lasts),
            WatchLost(chance=0.2, for_=lasts),
            StoreSlow(chance=0.3, for_=lasts),
        )
        self._world.inject(self._rng.choice(kinds))

    async def _outage(self) -> None:
        self._world.inject(StoreUnavailable(for_=self._rng.choice((2.0, 15.0, 40.0))))

    async def _refuse(self) -> None:
        said = self._said.get(self._rng.choice(self._names))
        if said is not None:
            spec = self._rng.choice(said.slices)
            self.refused[spec.base] = None
            self._world.inject(SliceRefuses(artifact=spec.artifact, for_=self._rng.choice((3.0, 30.0))))


def told(
    seed: int, *, nodes: int, blueprints: int, moments: int, most: int, agents: Literal["real", "light"] = "light"
) -> None:
    blades = tuple(BladeConfig(node=f"r{n // 20}-b{n % 20}", labels={"zone": "ab"[n % 2]}) for n in range(nodes))
    plan = WorldConfig(blades=blades, replicas=2, agents=agents, slices=True, log=False)

    async def story(world: World) -> None:
        watch = Watch(world)
        for name in range(blueprints):
            for which in "ab":
                world.traffic.set(f"org.bp{name}:{which}", Rate(per_second=50, p95_ms=5))
        churn = Churn(world, seed, blueprints=blueprints, most=most)
        await world.sleep(15)
        await churn.begin()
        await churn.go_on(moments)
        await churn.calm()
        # What was given up stays so until somebody applies something: only what could not be started may have been.
        await watch.met(within=900, may_fail=churn.refused)  # nothing is on nodes that are drained
        await churn.fill_up()
        await watch.met(within=900, may_fail=churn.refused)
        watch.held()

    run_named_world(plan, story, seed=seed, run=f"{nodes} nodes")


@pytest.mark.timeout(36_000)
def test_a_thousand_nodes_with_fifty_blueprints_come_to_what_these_say() -> None:
    for seed in LARGE_SEEDS:
        told(seed, nodes=1_000, blueprints=50, moments=50, most=8)


@pytest.mark.timeout(36_000)
@pytest.mark.parametrize("part", range(2))
def test_twenty_nodes_with_six_blueprints_come_to_what_these_say(part: int) -> None:
    for seed in SMALL_SEEDS[part::2]:
        told(seed, nodes=20, blueprints=6, moments=40, most=30)


@pytest.mark.timeout(36_000)
@pytest.mark.parametrize("part", range(2))
def test_eight_nodes_with_real_agents_on_a_bad_network_come_to_what_four_blueprints_say(part: int) -> None:
    for seed in SMALL_SEEDS[part::2]:
        told(seed, nodes=8, blueprints=4, moments=40, most=16, agents="real")
