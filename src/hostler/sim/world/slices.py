"""Slices of a blade: they outlive its agent, and fail according to the conditions of the blade."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.drivers.slices.simulated import SliceHost, SliceTimes
from hostler.errors import Refused, Unavailable
from hostler.model.deployment import base_of
from hostler.ports.slices import Life
from hostler.sim.world.host import chance

if TYPE_CHECKING:
    from hostler.drivers.slices.simulated import Verb
    from hostler.sim.world.blade import BladeHost
    from hostler.sim.world.config import WorldConfig


class WorldSlices(SliceHost):
    """The slices of one blade."""

    def __init__(self, blade: BladeHost) -> None:
        super().__init__(blade.node)
        self._blade = blade
        self._chance = chance(blade.world.seed, f"slices of {blade.node}")

    def there(self) -> dict[tuple[str, int], Life]:
        """Return the life of each slice, by artifact and number."""
        return {(row.run.artifact, row.run.instance): row.life for row in self.rows.values()}

    def end(self, artifact: str) -> None:
        """End all active instances of an artifact or slice by themselves; empty: of all."""
        for name, row in tuple(self.rows.items()):
            if row.life is Life.ACTIVE and artifact in ("", row.run.artifact, base_of(row.run.artifact)):
                self.crash(name, "it was killed")

    def disown(self) -> None:
        """Forget the listeners of an agent that is gone."""
        self._changed.clear()

    def met(self, artifact: str, verb: Verb) -> None:
        now = self._blade.conditions
        for fault in now.refuses:
            concerned = verb == fault.step and fault.artifact in ("", artifact, base_of(artifact))
            if concerned and self._chance.random() < fault.chance:
                raise Refused(f"{artifact}: {verb} failed (simulated)")
        if now.errors and self._chance.random() < now.errors:
            raise Unavailable(f"{artifact}: {verb} failed this time (simulated)")
        super().met(artifact, verb)

    def slowness(self, artifact: str) -> float:
        return super().slowness(artifact) + self._blade.conditions.delay


def slice_times(plan: WorldConfig) -> SliceTimes:
    """Return how long it takes to load and to start a slice."""
    return SliceTimes(load=plan.load_time, activate=plan.start_time)
