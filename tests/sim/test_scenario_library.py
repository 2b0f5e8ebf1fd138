"""The scenarios that come with Hostler: each loads, is small, and passes with its own seed and many others.

`make test` runs each with its own seed and one of a pool of 22, which rotates with the commit: the pool is more than
2,000 runs of 170 virtual hours. A run takes about 0.07 s of processor time. `make soak` runs 270 seeds of each.
"""

from __future__ import annotations

import pytest
from dose import seeds

from hostler.sim.scenario import library
from hostler.sim.scenario.run import run_scenario

from .evidence import check_passed

POOL = 22
SEEDS = [1 + seed for seed in seeds(test=1, pool=POOL, full=270)]
NAMES = library.names()


def test_the_library_is_large_and_what_stands_in_it_small() -> None:
    assert len(NAMES) >= 40
    assert POOL * len(NAMES) >= 2_000
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
    for seed in dict.fromkeys((scenario.seed, *SEEDS)):
        check_passed(scenario, run_scenario(scenario, seed, kept=False))


def test_machines_that_must_be_together_are_placed_one_after_the_other() -> None:
    scenario = library.find("kept-together")
    for seed in range(30):
        check_passed(scenario, run_scenario(scenario, seed, kept=False))
