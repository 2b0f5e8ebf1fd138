"""Elections and replicas under seeded schedules of faults, in virtual time (the promises: `world.py`).

A failure names its seed: `run_schedule(seed)` shows it again.
"""

from __future__ import annotations

import logging
from collections import Counter

import pytest
from dose import dose, mutants_to_run, part

from .mutants import MUTANTS
from .replicas import Host
from .world import Elector, Process, Rules, Wrong, run_schedule

PARTS = 10
"""Parts of each campaign. `make test` runs two of them, others with each commit."""
RUN = part(range(PARTS), test=2)
ELECTIONS = dose(test=120, full=7_000)
"""Schedules of all parts."""
REPLICAS = dose(test=60, full=3_000)
CONCERNED = (
    *(
        "src/hostler/engine/elections.py",
        "src/hostler/engine/leadership.py",
        "src/hostler/drivers/ttl/store.py",
        "src/hostler/kit/virtual_loop.py",
    ),
    *(
        "src/hostler/sim/faulty_link.py",
        "tests/sim/world.py",
        "tests/sim/mutants.py",
        "tests/sim/test_election_schedules.py",
    ),
)
"""What finds the mutants, and what they are mutants of."""
ENOUGH = 200
"""Seeds within which each mutant must be found."""


def run_part(number: int, schedules: int, make: type[Process]) -> Counter[str]:
    happened: Counter[str] = Counter()
    for seed in range(number, schedules, PARTS):
        tally = run_schedule(seed, make, keys=1 if make is Elector else 1 + seed // PARTS % 3)
        for name in ("leaderships", "lost", "writes", "refused", "stops", "kills"):
            happened[name] += getattr(tally, name)
    return happened


@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("number", RUN)
def test_no_schedule_breaks_an_election(number: int) -> None:
    happened = run_part(number, ELECTIONS, Elector)
    quiet = [name for name in ("leaderships", "lost", "writes", "stops", "kills") if not happened[name]]
    assert not quiet, f"a schedule without trouble proves little: {happened}"


@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("number", RUN)
def test_no_schedule_breaks_a_replica(number: int) -> None:
    happened = run_part(number, REPLICAS, Host)
    assert min(happened[name] for name in ("leaderships", "lost", "writes")) > 0, happened


@pytest.mark.parametrize(
    ("rules", "found_as"), [pytest.param(*rest, id=name) for name, *rest in mutants_to_run(MUTANTS, *CONCERNED)]
)
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
