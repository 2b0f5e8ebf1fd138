"""What a failed run in virtual time leaves: how to play it again, and everything that was written in its store."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from harness.artefacts import Unsafe, keep

from hostler.sim.scenario.run import run_scenario
from hostler.sim.world import run_world

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hostler.drivers.store.memory import MemoryStore
    from hostler.sim.scenario.run import Outcome
    from hostler.sim.scenario.scenario import Scenario
    from hostler.sim.world import World, WorldConfig

T = TypeVar("T")


def name_run(error: BaseException, run: str, store: MemoryStore | None) -> None:
    """Name the run in its failure, and keep the history of its store."""
    error.add_note(run)
    keep("run", run)
    if store is not None:
        keep("history", history(store))


def run_named_world(plan: WorldConfig, story: Callable[[World], Awaitable[T]], *, seed: int, run: str) -> T:
    """`run_world`, whose failure names the run and its seed."""
    worlds: list[World] = []

    async def watched(world: World) -> T:
        worlds.append(world)
        return await story(world)

    try:
        return run_world(plan, watched, seed=seed)
    except BaseException as error:
        name_run(error, f"{run}, seed {seed}", worlds[0].store if worlds else None)
        raise


def history(store: MemoryStore) -> str:
    """Every event of a store that it still knows, a line each."""
    return "\n".join(
        f"{revision} {event.type} {event.kv.key} {event.kv.value.decode(errors='replace')}"
        for revision, events in store._state.log(store._state.compacted + 1)
        for event in events
    )


def check_passed(scenario: Scenario, outcome: Outcome) -> None:
    """Fail with `Unsafe`, and keep violations and log, unless everything held in a run of the sound control plane."""
    if outcome.passed:
        return
    run = f"hostler sim run {scenario.name} --seed {outcome.seed}"
    keep("run", run)
    keep("violations", outcome.violations)
    keep("moments", outcome.moments)
    keep("log", run_scenario(scenario, outcome.seed).log_lines().decode())
    raise Unsafe(f"{run}: {outcome.violations}")
