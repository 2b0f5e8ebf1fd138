"""One run of a scenario with one seed, which determine everything that happens in it; and its outcome as text."""

from __future__ import annotations

import asyncio
import functools
import textwrap
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.kit.plural import counted
from hostler.kit.virtual_loop import ProcessLoop, run_virtual
from hostler.sim.invariants import Invariants, Verdict, Violation
from hostler.sim.invariants.converged import lost, unlisted_disks
from hostler.sim.invariants.labs import Ends
from hostler.sim.invariants.rollout import Rollouts
from hostler.sim.scenario.player import Player, plan_of
from hostler.sim.scenario.scenario import draw_moments
from hostler.sim.world import Factories, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from hostler.sim.invariants.converged import Unmet
    from hostler.sim.scenario.scenario import Moment, Scenario
    from hostler.sim.world.event_log import LogEntry


ALWAYS = ("requests_answered", "nothing_broke")
"""Checks in addition to the invariants that a scenario names: every request got the right answer, and no process ended
with an unexpected error."""
SHOWN = 8
"""Unmet specs that are listed one by one."""


class Outcome(msgspec.Struct, kw_only=True):
    """The outcome of a run."""

    scenario: str
    seed: int
    verdicts: tuple[Verdict, ...]
    moments: tuple[Moment, ...]
    """The timeline with the drawn faults, whether or not the run reached them."""
    log: tuple[LogEntry, ...] = ()
    counters: dict[str, float] = {}

    @property
    def passed(self) -> bool:
        return all(verdict.held for verdict in self.verdicts)

    @property
    def violations(self) -> list[Violation]:
        """The first violation of each invariant, in order of time."""
        found = [violation for verdict in self.verdicts for violation in verdict.violations[:1]]
        return sorted(found, key=lambda violation: violation.at)

    @property
    def broken(self) -> frozenset[str]:
        """The names of the invariants that did not hold."""
        return frozenset(verdict.invariant for verdict in self.verdicts if not verdict.held)

    def log_lines(self) -> bytes:
        """Return the log as JSON lines: the same bytes for the same scenario and seed."""
        return b"".join(msgspec.json.encode(entry) + b"\n" for entry in self.log)


def run_scenario(
    scenario: Scenario,
    seed: int | None = None,
    *,
    parts: Factories | None = None,
    tell: Callable[[LogEntry], None] = lambda _: None,
    kept: bool = True,
    until: str = "",
) -> Outcome:
    """Play a scenario from start to end.

    `tell` is called with each log entry. `kept`: the outcome contains the log. `until`: stop when this invariant is
    broken.
    """
    return _Run(scenario, scenario.seed if seed is None else seed, parts, tell, kept=kept, until=until).outcome()


class _Run:
    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        parts: Factories | None,
        tell: Callable[[LogEntry], None],
        *,
        kept: bool,
        until: str,
    ) -> None:
        self._scenario, self._seed, self._kept, self._until = scenario, seed, kept, until
        self._enough = False
        self._task: asyncio.Task[Any] | None = None
        """The task that plays the scenario, while it does."""
        self._moments = draw_moments(scenario, seed)
        self._loop = ProcessLoop(seed)
        self._world = World(plan_of(scenario), seed=seed, loop=self._loop, parts=parts, tell=tell)
        self._invariants: Invariants | None = None
        self._broke: list[Violation] = []
        self._asked = 0

    def outcome(self) -> Outcome:
        try:
            run_virtual(self._main, loop=self._loop)
        except Exception as error:  # noqa: BLE001 - a run that ends with an error is a violation
            self._note_error("the run", error)
        for name, failure in self._world.failures:
            self._note_error(name, failure)
        return Outcome(
            scenario=self._scenario.name,
            seed=self._seed,
            verdicts=(*(() if self._invariants is None else self._invariants.verdicts()), self._nothing_broke()),
            moments=self._moments,
            log=tuple(self._world.log.entries) if self._kept else (),
            counters={
                "virtual_seconds": round(self._loop.time(), 3),
                "steps": self._loop.steps,
                "revisions": self._world.chronicle.revision,
                "entries": len(self._world.log),
                "requests": self._asked,
                "faults": sum(1 for moment in self._moments if moment.document().get("fault")),
            },
        )

    async def _main(self) -> None:
        world, task = self._world, asyncio.current_task()
        async with world:
            # The store's first events are the inventory, which affects no invariant.
            invariants = self._invariants = Invariants(
                world, (*self._scenario.invariants, "requests_answered"), told=self._log_violation
            )
            try:
                await self._play(invariants)
            except asyncio.CancelledError:
                if not self._enough or task is None:
                    raise
                task.uncancel()
            finally:
                invariants.stop()

    async def _play(self, invariants: Invariants) -> None:
        def wrong(request: str, text: str) -> None:
            invariants.violated("requests_answered", request, text)

        def missed(difference: Unmet) -> None:
            invariants.violated(difference.invariant, difference.component, difference.text)

        world = self._world
        player = Player(world, self._scenario, self._moments, wrong=wrong, missed=missed)
        rollouts = Rollouts(world, functools.partial(invariants.violated, "rollout_kept"))
        ends = Ends(world, player.hands.asked, functools.partial(invariants.violated, "no_early_end"))
        stops = [world.chronicle.listen(heard) for heard in (rollouts.heard, ends.heard)]
        self._task = asyncio.current_task()
        await player.play()
        left = await player.settle()
        if not left:
            left = await unlisted_disks(world)
        self._task = None
        for stop in stops:
            stop()
        invariants.look("rollout_kept", rollouts.looks)
        invariants.look("no_early_end", ends.looks)
        invariants.stop()
        self._asked = player.asked
        invariants.look("requests_answered", player.asked)
        invariants.look("no_vm_lost", len(player.hands.promised))
        for name in await lost(world, player.hands.promised):
            invariants.violated("no_vm_lost", name, "its creation was acknowledged, but it has no record")
        invariants.look("wishes_met")
        if world.plan.slices:
            invariants.look("blueprints_met")
        for difference in left[:SHOWN]:
            invariants.violated(difference.invariant, difference.component, difference.text)
        if len(left) > SHOWN:
            invariants.violated(left[SHOWN].invariant, "the world", f"and {len(left) - SHOWN} more")
        invariants.check_runs()

    def _log_violation(self, violation: Violation) -> None:
        self._world.log.add("violation", violation.component, f"{violation.invariant}: {violation.text}")
        if violation.invariant == self._until and not self._enough and self._task is not None:
            self._enough = True
            self._task.cancel()

    def _note_error(self, component: str, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        at = round(self._loop.time(), 6)
        self._broke.append(Violation(invariant="nothing_broke", at=at, component=component, text=text))

    def _nothing_broke(self) -> Verdict:
        return Verdict(
            invariant="nothing_broke", looks=1, found=len(self._broke), violations=tuple(self._broke[:SHOWN])
        )


BRIEF = frozenset(
    (
        *("fault", "lifted", "killed", "paused", "woken", "leader", "silent", "returned", "asked", "refused"),
        *("repair", "violation", "lab", "blueprint", "deploys"),
    )
)
"""Kinds of entries that summarize a run."""
BEFORE, AFTER = 24, 6
"""Log entries shown around a violation."""


def verdict_lines(outcome: Outcome) -> Iterator[str]:
    """Yield one line for each invariant, and one for each recorded violation."""
    width = max(len(verdict.invariant) for verdict in outcome.verdicts)
    for verdict in outcome.verdicts:
        looked = counted(verdict.looks, "check") if verdict.looks else "nothing to check"
        broken = f"BROKEN {verdict.found:,} times" if verdict.found > 1 else "BROKEN"
        yield f"  {verdict.invariant:<{width}}  {f'holds ({looked})' if verdict.held else broken}"
        for violation in verdict.violations[:3]:
            yield from textwrap.wrap(
                f"at {violation.at:g} s: {violation.component}: {violation.text}",
                width=110,
                initial_indent="      ",
                subsequent_indent="        ",
                break_long_words=False,
            )


def timeline_lines(entries: Iterable[LogEntry], *, full: bool = False) -> Iterator[str]:
    """Yield one line for each log entry. Not `full`: the summary only."""
    for entry in entries:
        if full or entry.kind in BRIEF or (entry.kind == "hardware" and "→" in entry.text):
            yield entry_line(entry)


def entry_line(entry: LogEntry) -> str:
    """Return one log entry as text."""
    cause = f"  ← {entry.cause}" if entry.cause else ""
    text = f"{entry.component}: {entry.text}" if entry.text else entry.component
    return f"{entry.at:>9.3f} s  {entry.kind:<9} {text}{cause}"


def around(log: Sequence[LogEntry], violation: Violation) -> list[LogEntry]:
    """Return the log entries around the time of a violation."""
    first = next((at for at, entry in enumerate(log) if entry.at > violation.at), len(log))
    return list(log[max(0, first - BEFORE) : first + AFTER])


def moment_lines(moments: Sequence[Moment]) -> Iterator[str]:
    """Yield one line for each event of a schedule."""
    if not moments:
        yield "  none: it fails without any fault"
    for moment in moments:
        yield f"  {moment.at:>9.3f} s  {moment.told}"
