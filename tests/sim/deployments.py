"""Small worlds with slices, for tests: how they are made, asked and judged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hostler.keys.families import DEPLOYMENT
from hostler.model.deployment import Blueprint, SliceSpec
from hostler.model.rollout import Phase
from hostler.sim.invariants import Invariants
from hostler.sim.invariants.blueprints import unmet_blueprints
from hostler.sim.invariants.converged import unmet
from hostler.sim.scenario.scenario import INVARIANTS
from hostler.sim.world import BladeConfig, WorldConfig

if TYPE_CHECKING:
    from collections.abc import Collection

    from hostler.sim.world import World

CART = "org.shop:cart"


def blueprint(*slices: SliceSpec) -> Blueprint:
    return Blueprint(slices=slices)


def spec(version: str, instances: int, base: str = CART, **more: Any) -> SliceSpec:
    return SliceSpec(artifact=f"{base}:{version}", instances=instances, **more)


def plan(nodes: int, **more: Any) -> WorldConfig:
    """Blades of one rack each, so that nothing is known of their cables."""
    blades = tuple(BladeConfig(node=f"r{n}-b1") for n in range(1, nodes + 1))
    settings = {"replicas": 1, "leadership_ttl": 3.0, "node_ttl": 4.0, "fencing_time": 8.0, "log": False} | more
    return WorldConfig(blades=blades, slices=True, **settings)


async def apply(world: World, name: str, wanted: Blueprint) -> None:
    await world.ask(lambda d: d.blueprints.apply(d.request, name, wanted))


async def delete(world: World, name: str) -> None:
    await world.ask(lambda d: d.blueprints.delete(d.request, name))


async def rollback(world: World, name: str, to: int) -> None:
    await world.ask(lambda d: d.blueprints.rollback(d.request, name, to))


class Watch:
    """The invariants, watched beside a story that is told by a test."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.invariants = Invariants(world, INVARIANTS)

    async def met(self, *, within: float = 120.0, may_fail: Collection[str] = ()) -> None:
        """Until all is as the blueprints say, and nobody has anything left to do. `may_fail`: slices whose last version
        may have been given up."""
        left: list[Any] = []
        seen = -1

        async def looked() -> bool:
            nonlocal left, seen
            if seen != self.world.chronicle.revision:
                seen = self.world.chronicle.revision
                failed = [base for base in await self._failed() if base in may_fail]
                left = await unmet_blueprints(self.world, failed) or await unmet(self.world)
            return not left

        assert await self.world.until(looked, within=within, every=0.5), left

    async def _failed(self) -> list[str]:
        entries = (await DEPLOYMENT.list(self.world.store)).entries
        return [DEPLOYMENT.parse(entry.key)["base"] for entry in entries if entry.value.phase is Phase.FAILED]

    def held(self) -> None:
        """Nothing was ever as it must not be, and no process ended by an error."""
        self.invariants.stop()
        broken = [violation for verdict in self.invariants.verdicts() for violation in verdict.violations]
        assert not broken, broken
        assert not self.world.failures, self.world.failures
