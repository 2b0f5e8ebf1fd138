"""Elections and replicas under seeded schedules of faults, in virtual time (the promises: `world.py`).

A failure names its seed: `run_schedule(seed)` shows it again.
"""

from __future__ import annotations

import logging
from collections import Counter

import pytest
from dose import dose

from .mutants import MUTANTS
from .replicas import Host
from .world import Elector, Process, Rules, Wrong, run_schedule

PARTS = 10
ELECTIONS = dose(test=120, full=7_000)
REPLICAS = dose(test=60, full=3_000)
ENOUGH = 200
"""Seeds within which each mutant must be found."""


def run_part(part: int, schedules: int, make: type[Process]) -> Counter[str]:
    happened: Counter[str] = Counter()
    for seed in range(part, schedules, PARTS):
        tally = run_schedule(seed, make, keys=1 if make is Elector else 1 + seed // PARTS % 3)
        for name in ("leaderships", "lost", "writes", "refused", "stops", "kills"):
            happened[name] += getattr(tally, name)
    return happened


@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_breaks_an_election(part: int) -> None:
    happened = run_part(part, ELECTIONS, Elector)
    quiet = [name for name in ("leaderships", "lost", "writes", "stops", "kills") if not happened[name]]
    assert not quiet, f"a schedule without trouble proves little: {happened}"


@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_breaks_a_replica(part: int) -> None:
    happened = run_part(part, REPLICAS, Host)
    assert min(happened[name] for name in ("leaderships", "lost", "writes")) > 0, happened


@pytest.mark.parametrize(("rules", "found_as"), [pytest.param(*rest, id=name) for name, *rest in MUTANTS])
def test_a_defect_is_found(rules: Rules, found_as: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    for seed in range(ENOUGH):
        try:
            run_schedule(seed, rules=rules)
        except Wrong as wrong:
            with pytest.raises(Wrong, match=found_as):
                raise wrong
            return
    pytest.fail(f"not found in {ENOUGH} schedules")


def test_the_same_seed_gives_the_same_schedule() -> None:
    assert [run_schedule(seed) for seed in range(5)] == [run_schedule(seed) for seed in range(5)]
    assert run_schedule(3, Host, keys=2) == run_schedule(3, Host, keys=2)
