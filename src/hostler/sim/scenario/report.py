"""Outcome of a run as text."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from hostler.kit.plural import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hostler.sim.invariants import Violation
    from hostler.sim.log import LogEntry
    from hostler.sim.scenario.run import Outcome
    from hostler.sim.scenario.scenario import Moment

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
