"""The scenarios that come with Hostler: each loads, is small, and passes with its own seed and many others.

The campaign: 22 seeds of each of 96 scenarios are more than 2,000 runs of 170 virtual hours. One takes from 0.10 s (the
machine is idle) to 0.17 s (others are busy) of processor time, all of them from 4 to 6 minutes, which is from 2 to 3 on
two cores; each scenario is an item, so that workers share them. `make soak` takes ten times as many seeds.
"""

from __future__ import annotations

import pytest
from dose import dose

from hostler.sim.scenario import library
from hostler.sim.scenario.run import run_scenario

SEEDS = dose(test=22, full=270)
NAMES = library.names()


def test_the_library_is_large_and_what_stands_in_it_small() -> None:
    assert len(NAMES) >= 40
    assert SEEDS * len(NAMES) >= 2_000
    for name in NAMES:
        scenario = library.find(name)
        assert scenario.name == name
        assert len(scenario.about) > 40, name
        assert sum(1 for _ in scenario.inventory.nodes()) <= 10, name
        assert scenario.length <= 600, name


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", NAMES)
def test_whatever_the_seed_everything_holds(name: str) -> None:
    scenario = library.find(name)
    for seed in dict.fromkeys((scenario.seed, *range(1, SEEDS + 1))):
        outcome = run_scenario(scenario, seed, kept=False)
        assert outcome.passed, f"hostler sim run {name} --seed {seed}: {outcome.violations}"
