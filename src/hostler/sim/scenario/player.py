"""Plays a scenario in a world: its specs, then its timeline, then a period without faults."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from hostler.errors import HostlerError
from hostler.sim.fault import FaultBase
from hostler.sim.invariants.blueprints import unmet_blueprints
from hostler.sim.invariants.converged import Unmet, unmet, unmet_now
from hostler.sim.scenario import actions
from hostler.sim.scenario.action_runner import Hands
from hostler.sim.world import WorldConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hostler.sim.scenario.actions import Act
    from hostler.sim.scenario.scenario import Moment, Scenario
    from hostler.sim.world import World

LOOK_EVERY = 1.0
"""Seconds between two checks whether the state matches the specs; skipped while nothing changes."""
AGAIN_EVERY = 10.0
"""Seconds between checks even if the store has not changed: places change without the store."""
REPAIR_EVERY = 5.0


def plan_of(scenario: Scenario) -> WorldConfig:
    """Return the configuration of the world of a scenario."""
    asked = [moment.what for moment in scenario.timeline]
    return WorldConfig(
        inventory=scenario.inventory,
        replicas=scenario.replicas,
        labs=bool(scenario.labs) or any(isinstance(what, actions.LabStart) for what in asked),
        catalogue=scenario.catalogue,
        slices=bool(scenario.blueprints) or any(isinstance(what, actions.ApplyBlueprint) for what in asked),
        **scenario.settings,
    )


class Player:
    """Plays one scenario in one world.

    `wrong` is called for a request with a wrong answer, `missed` for an expectation that is not met.
    """

    def __init__(
        self,
        world: World,
        scenario: Scenario,
        moments: Sequence[Moment],
        *,
        wrong: Callable[[str, str], None] = lambda _, __: None,
        missed: Callable[[Unmet], None] = lambda _: None,
    ) -> None:
        self._world, self._scenario, self._moments = world, scenario, moments
        self._wrong, self._missed = wrong, missed
        self.hands = Hands(world, scenario.inventory, within=scenario.length + scenario.settle)
        self.asked = 0
        self._asking: dict[asyncio.Task[None], str] = {}

    async def play(self, coming: Callable[[int], None] = lambda _: None) -> None:
        """Play until the scenario's length is over. `coming` is called with the number of events still to come."""
        world = self._world
        for what, text in self._wishes():
            self._ask(what, text)
        for number, moment in enumerate(self._moments):
            coming(len(self._moments) - number)
            await world.sleep(moment.at - world.clock.now())
            self._happen(moment)
        coming(0)
        await world.sleep(self._scenario.length - world.clock.now())

    async def settle(self) -> list[Unmet]:
        """Lift every fault, repair what is broken, and wait until the state matches the specs.

        Return what does not match in time.
        """
        world = self._world
        end = world.clock.now() + self._scenario.settle
        for id_ in tuple(world.faults):
            world.lift(id_)
        repair_at = look_at = world.clock.now()
        seen = -1
        left: list[Unmet] = []
        pending = self._scenario.pending
        while True:
            now = world.clock.now()
            if now >= repair_at:
                self.hands.repair()
                repair_at = now + REPAIR_EVERY
            if world.chronicle.revision != seen or now >= look_at or now >= end:
                seen, look_at = world.chronicle.revision, now + AGAIN_EVERY
                found = [*await unmet(world), *await self.hands.asked.unmet()]
                left = _judged(found, pending) + await unmet_blueprints(world, self._scenario.given_up)
                if (not left and not self._asking) or now >= end:
                    break
            await world.sleep(LOOK_EVERY)
        for task, text in self._asking.items():
            task.cancel()
            self._wrong(text, "not answered")
        await asyncio.gather(*self._asking, return_exceptions=True)
        return left

    def _wishes(self) -> Iterator[tuple[Act, str]]:
        """Yield the specs at the start."""
        scenario = self._scenario
        for workload in scenario.workloads:
            yield actions.Apply(workload=workload), f"apply workload {workload.name}"
        for vms in scenario.vms:
            yield actions.CreateVm(vms=vms), f"create vm {vms.names[0]}"
        for name, blueprint in scenario.blueprints.items():
            yield actions.ApplyBlueprint(name=name, blueprint=blueprint), f"apply blueprint {name}"
        for labs in scenario.labs:
            yield actions.LabStart(labs=labs), f"start lab of {labs.users[0]}"

    def _happen(self, moment: Moment) -> None:
        what: Any = moment.what
        if not isinstance(what, FaultBase):
            self._ask(what, moment.told)
            return
        try:
            self._world.inject(what)  # type: ignore[arg-type]
        except HostlerError as error:  # a component may have been removed since the file was read
            self._world.log.add("fault", what.on or what.name, f"no effect: {error}")

    def _ask(self, what: Act, text: str) -> None:
        self.asked += 1
        self._world.log.add("asked", text, "should be refused" if what.refused else "")
        task = self._world.spawn(self._answered(what, text), f"act: {text}")
        self._asking[task] = text
        task.add_done_callback(lambda done: self._asking.pop(done, None))

    async def _answered(self, what: Act, text: str) -> None:
        try:
            if isinstance(what, actions.Expect):
                found = _judged(await unmet_now(self._world), what.pending)
                for difference in [*found, *await unmet_blueprints(self._world, what.given_up)]:
                    self._missed(difference)
            else:
                await self.hands.do(what)
        except HostlerError as error:
            self._world.log.add("refused", text, str(error))
            if not what.refused:
                self._wrong(text, f"{type(error).__name__}: {error}")
        else:
            self._world.log.add("done", text, "")
            if what.refused:
                self._wrong(text, "it succeeded, but should have been refused")


def _judged(found: list[Unmet], pending: int) -> list[Unmet]:
    """Remove what waits for capacity, if the number is as expected."""
    waiting = sum(difference.waits for difference in found)
    if waiting == pending:
        return [difference for difference in found if not difference.waits]
    return [Unmet("the world", f"{waiting} wait for capacity, {pending} should"), *found] if pending else found
