"""Scenarios of the library, each told as one line: run in processes of their own.

python -m sim.scenario_digest STEP NAME,NAME,… SEED,SEED,…
"""

from __future__ import annotations

import hashlib
import sys
from typing import TYPE_CHECKING

import msgspec

from hostler.sim.scenario import library
from hostler.sim.scenario.run import run_scenario
from hostler.sim.world.event_log import EventLog

if TYPE_CHECKING:
    from hostler.ports.store import Event


class _Written:
    """All that was ever written in the store, value by value: the log tells what happened, and not in which words."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()

    def heard(self, event: Event) -> None:
        kv = event.kv
        self.digest.update(f"{event.type} {kv.key} {kv.mod_revision} ".encode() + kv.value)


def told(name: str, seed: int) -> str:
    """What came of it: digests of the log, of all that was written, and of what was counted and found."""
    written, happened = _Written(), EventLog._take_event

    def heard(self: EventLog, event: Event) -> None:
        written.heard(event)
        happened(self, event)

    EventLog._take_event = heard  # type: ignore[method-assign]
    try:
        outcome = run_scenario(library.find(name), seed)
    finally:
        EventLog._take_event = happened  # type: ignore[method-assign]
    rest = msgspec.json.encode([outcome.counters, outcome.verdicts, [moment.document() for moment in outcome.moments]])
    parts = (outcome.log_lines(), rest)
    digests = [written.digest.hexdigest(), *(hashlib.sha256(part).hexdigest() for part in parts)]
    return f"{name} {seed} {len(outcome.log)} {' '.join(digests)}"


def main(step: str, names: str, seeds: str) -> None:
    """Tell every scenario, or every third, or (-1) all from the last to the first: so whatever one run leaves behind is
    left to others."""
    runs = [(name, int(seed)) for seed in seeds.split(",") for name in names.split(",")]
    for name, seed in runs[:: int(step)]:
        print(told(name, seed))


if __name__ == "__main__":
    main(*sys.argv[1:])
