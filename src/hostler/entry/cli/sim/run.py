"""`hostler sim run`."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from hostler.entry.cli import show
from hostler.entry.cli.failure import note
from hostler.entry.cli.progress import Ticker
from hostler.kit.plural import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostler.entry.cli.sim.parallel_runs import Ran
    from hostler.sim.scenario.run import Outcome
    from hostler.sim.scenario.scenario import Scenario
    from hostler.sim.scenario.shrink import Smallest
    from hostler.sim.world.event_log import LogEntry

FAILED = 1
MOST = 1_000_000
"""The largest number of seeds in one call."""
LONGEST_WAIT = 3600.0


class Seeds(click.ParamType[tuple[int, int]]):
    """A seed `7`, or a range `1..50`, as first and last."""

    name = "seeds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        found = re.fullmatch(r"([0-9]{1,18})(?:\.\.([0-9]{1,18}))?", str(value))
        first, last = (0, -1) if found is None else (int(found[1]), int(found[2] or found[1]))
        if not 0 <= last - first < MOST:
            self.fail(f"{value!r}: write A..B, the first and the last of at most {MOST} seeds", param, ctx)
        return first, last


@click.command()
@click.argument("scenarios", metavar="FILE|NAME…", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Run every scenario of the library.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Use this seed instead of the scenario's own.")
@click.option("--seeds", type=Seeds(), metavar="A..B", help="Run once with each of these seeds.")
@click.option("--jobs", type=click.IntRange(1, 1024), help="Parallel processes. Default: the number of cores.")
@click.option(
    "--speed",
    type=click.FloatRange(min=0, min_open=True),
    help="Virtual seconds per real second, for a single run. Default: as fast as possible.",
)
@click.option(
    "--log",
    "log_file",
    type=click.Path(path_type=Path, allow_dash=True),
    help="Write the whole log as JSON lines to this file; - is stdout.",
)
@click.option("--full", is_flag=True, help="Show every log entry, not only the main ones.")
@click.option("--shrink/--no-shrink", default=True, help="After a failure, search for the shortest failing schedule.")
@click.option("--tries", type=click.IntRange(0, 100_000), default=150, show_default=True, help="Runs for shrinking.")
@click.option("--save", type=click.Path(path_type=Path, dir_okay=False), help="Write the shrunk scenario to this file.")
@click.option(
    "-o", "--output", type=click.Choice(("table", "json")), default="table", show_default=True, help="Output format."
)
def run(*, scenarios: tuple[str, ...], everything: bool, **options: Any) -> int:
    """Run scenarios in virtual time, and check that all invariants hold.

    A scenario is a file, or a name from `hostler sim list`. The same scenario with the same seed gives the same run, to
    the byte. After a violation the exit code is 1, and the output has the seed, the events before it, the shortest
    failing schedule found, and the command to reproduce it.
    """
    if bool(scenarios) == everything:
        raise click.UsageError("give a file or a name (hostler sim list shows all), or --all")
    asked = _Asked.of(**options)
    if asked.seed is not None and asked.seeds is not None:
        raise click.UsageError("give --seed or --seeds, not both")
    from hostler.entry.cli.sim.library import open_scenario
    from hostler.sim.scenario import library

    names = tuple(library.names()) if everything else scenarios
    found = {name: open_scenario(name) for name in names}  # report mistakes in any scenario before the first run
    if len(found) == 1 and asked.seeds is None:
        ((what, scenario),) = found.items()
        return _single(what, scenario, asked)
    return _many(found, asked)


class _Asked(NamedTuple):
    """The options of `hostler sim run`."""

    seed: int | None
    seeds: tuple[int, int] | None
    jobs: int
    speed: float | None
    log_file: Path | None
    full: bool
    tries: int
    save: Path | None
    output: str

    @classmethod
    def of(cls, *, jobs: int | None, shrink: bool, tries: int, **options: Any) -> _Asked:
        return cls(jobs=jobs or os.cpu_count() or 1, tries=tries if shrink else 0, **options)

    @property
    def table(self) -> bool:
        return self.output == "table" and str(self.log_file) != "-"


# One run


def _single(what: str, scenario: Scenario, asked: _Asked) -> int:
    from hostler.sim.scenario.run import entry_line, run_scenario, timeline_lines

    seed = scenario.seed if asked.seed is None else asked.seed
    begun = time.process_time()
    with Ticker() as ticker:
        pace = _Pace(asked.speed)

        def tell(entry: LogEntry) -> None:
            pace.wait(entry.at)
            ticker.tell(f"{scenario.name}, seed {seed}: {entry.at:.0f} of about {scenario.length:.0f} virtual seconds")
            if asked.speed is not None and asked.table:
                for line in timeline_lines((entry,), full=asked.full):
                    click.echo(show.safe(line))

        outcome = run_scenario(scenario, seed, tell=tell)
    cpu = time.process_time() - begun
    _write_log(outcome, asked.log_file)
    if asked.table:
        click.echo(click.style(f"{scenario.name}, seed {seed}", bold=True))
        if asked.speed is None:
            for entry in outcome.log:
                for line in timeline_lines((entry,), full=asked.full):
                    click.echo(show.safe(line))
        _show_verdicts(outcome, cpu)
    smallest = _explain_failure(what, scenario, outcome, asked, entry_line)
    if asked.output == "json" and str(asked.log_file) != "-":
        click.echo(json.dumps(_plain(what, outcome, smallest), indent=2, ensure_ascii=False))
    return 0 if outcome.passed else FAILED


class _Pace:
    """Limits virtual time to the requested speed."""

    def __init__(self, speed: float | None) -> None:
        self._speed, self._begun = speed, time.monotonic()

    def wait(self, at: float) -> None:
        if self._speed is not None:
            ahead = at / self._speed - (time.monotonic() - self._begun)
            if ahead > 0:
                time.sleep(min(ahead, LONGEST_WAIT))


def _show_verdicts(outcome: Outcome, cpu: float) -> None:
    from hostler.sim.scenario.run import verdict_lines

    click.echo(click.style("verdicts", bold=True))
    for line in verdict_lines(outcome):
        click.echo(click.style(show.safe(line), fg="red") if "BROKEN" in line else show.safe(line))
    virtual = outcome.counters["virtual_seconds"]
    word = click.style("passed", fg="green") if outcome.passed else click.style("FAILED", fg="red")
    entries = counted(int(outcome.counters["entries"]), "log entry", "log entries")
    click.echo(f"{word}: {virtual:.0f} virtual seconds in {cpu:.2f} s, {entries}")


def _write_log(outcome: Outcome, file: Path | None) -> None:
    if file is None:
        return
    if str(file) == "-":
        click.echo(outcome.log_lines(), nl=False)
    else:
        file.write_bytes(outcome.log_lines())


# Explaining a failure


def _explain_failure(
    what: str, scenario: Scenario, outcome: Outcome, asked: _Asked, line_of: Callable[[LogEntry], str]
) -> Smallest | None:
    """Show the events before a failure, and search for the shortest failing schedule; None: passed, or no search."""
    if outcome.passed:
        return None
    from hostler.sim.scenario.run import around, moment_lines
    from hostler.sim.scenario.shrink import smallest

    first = outcome.violations[0]
    if asked.table:
        click.echo(click.style(f"around {first.invariant}, at {first.at:g} s", bold=True))
        for entry in around(outcome.log, first):
            click.echo(show.safe(line_of(entry)))
    found = None
    if asked.tries:
        with Ticker() as ticker:
            found = smallest(scenario, outcome, tries=asked.tries, told=lambda line: ticker.tell(f"shrinking: {line}"))
        if asked.table:
            least = "shortest" if found.complete else "shortest found"
            tries = counted(found.tries, "try", "tries")
            click.echo(click.style(f"{least} schedule that breaks {first.invariant} ({tries})", bold=True))
            for line in moment_lines(found.scenario.timeline):
                click.echo(show.safe(line))
    _save(found, first.invariant, asked)
    if asked.table:
        click.echo(click.style("reproduce", bold=True) + f"  hostler sim run {what} --seed {outcome.seed}")
    return found


def _save(found: Smallest | None, broken: str, asked: _Asked) -> None:
    if asked.save is None:
        return
    if found is None:
        note(f"{asked.save}: not written, because nothing was shrunk")
        return
    from hostler.sim.scenario.format import scenario_text

    asked.save.write_text(scenario_text(found.scenario), encoding="utf-8")
    verdict = "fails in the same way" if broken in found.outcome.broken else "does not fail in the same way"
    note(f"{asked.save}: {verdict}; hostler sim run {asked.save}")


def _plain(what: str, outcome: Outcome, smallest: Smallest | None) -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = {
        "scenario": what,
        "seed": outcome.seed,
        "passed": outcome.passed,
        "verdicts": [msgspec.to_builtins(verdict) | {"held": verdict.held} for verdict in outcome.verdicts],
        "counters": outcome.counters,
        "moments": [moment.document() for moment in outcome.moments],
    }
    if smallest is not None:
        plain["smallest"] = smallest.scenario.document
        plain["tries"] = smallest.tries
    return plain


# Many runs


def _many(found: dict[str, Scenario], asked: _Asked) -> int:
    from hostler.entry.cli.sim.parallel_runs import Run, crew

    if asked.speed is not None or asked.log_file is not None:
        raise click.UsageError("--speed and --log are for one run")
    runs = []
    for what, scenario in found.items():
        own = scenario.seed if asked.seed is None else asked.seed
        first, last = asked.seeds or (own, own)
        runs += [Run(what, seed) for seed in range(first, last + 1)]
    done: list[Ran] = []
    begun = time.monotonic()
    running = crew(runs, min(asked.jobs, len(runs)))
    try:
        with Ticker() as ticker:
            for one in running:
                done.append(one)
                failed = sum(not each.passed for each in done)
                ticker.tell(f"{len(done):,} of {counted(len(runs), 'run')}, {failed} failed")
    except KeyboardInterrupt:
        note(f"interrupted after {len(done):,} of {counted(len(runs), 'run')}")
        _summary(done, asked, time.monotonic() - begun, of=len(runs))
        raise
    finally:
        running.close()  # type: ignore[attr-defined]
    _summary(done, asked, time.monotonic() - begun, of=len(runs))
    failures = sorted((one for one in done if not one.passed), key=lambda one: (one.run.what, one.run.seed))
    if failures:
        _again(failures[0], found, asked)
    return FAILED if failures else 0


def _again(failure: Ran, found: dict[str, Scenario], asked: _Asked) -> None:
    """Run the first failure again and show all its details."""
    from hostler.sim.scenario.run import entry_line, run_scenario

    if not asked.table:
        return
    scenario = found[failure.run.what]
    begun = time.process_time()
    outcome = run_scenario(scenario, failure.run.seed)
    click.echo()
    click.echo(click.style(f"{scenario.name}, seed {failure.run.seed}", bold=True))
    _show_verdicts(outcome, time.process_time() - begun)
    _explain_failure(failure.run.what, scenario, outcome, asked, entry_line)


def _summary(done: Sequence[Ran], asked: _Asked, seconds: float, *, of: int) -> None:
    """Summarize the completed runs, of `of` requested ones."""
    rows: dict[str, list[Ran]] = {}
    for one in done:
        rows.setdefault(one.run.what, []).append(one)
    failures = sorted((one for one in done if not one.passed), key=lambda one: (one.run.what, one.run.seed))
    if not asked.table:
        plain = {
            "runs": len(done),
            "asked": of,
            "failed": len(failures),
            "seconds": round(seconds, 3),
            "scenarios": {
                what: {"runs": len(some), "failed": sum(not one.passed for one in some), "cpu": _cpu(some)}
                for what, some in rows.items()
            },
            "failures": [
                {"scenario": one.run.what, "seed": one.run.seed, "broken": one.broken, "text": one.text}
                for one in failures
            ],
        }
        click.echo(json.dumps(plain, indent=2, ensure_ascii=False))
        return
    if rows:
        table = show.Columns("SCENARIO", "RUNS", "FAILED", "CPU/RUN")
        table.rows(
            [
                (what, str(len(some)), str(sum(not one.passed for one in some)), f"{_cpu(some) / len(some):.3f} s")
                for what, some in sorted(rows.items())
            ]
        )
    for one in failures[:20]:
        click.echo(show.safe(f"{one.run.what} --seed {one.run.seed}: {', '.join(one.broken)}: {one.text}"))
    if len(failures) > 20:
        click.echo(f"… and {len(failures) - 20} more")
    virtual = sum(one.virtual for one in done)
    word = click.style(f"{len(failures)} FAILED", fg="red") if failures else click.style("all passed", fg="green")
    if len(done) < of:
        word = f"interrupted after {len(done):,} of {of:,}, {word if failures else 'none of them failed'}"
    click.echo(f"{word}: {counted(len(done), 'run')}, {virtual / 3600:.1f} virtual hours in {seconds:.1f} s")


def _cpu(some: Sequence[Ran]) -> float:
    return round(sum(one.cpu for one in some), 3)
