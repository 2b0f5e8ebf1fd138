"""The invariants of slices find something: with a defect in one part of what deploys them a scenario of the library
fails within a few seeds, and passes with the same seeds without it. The schedule of one of them shrinks, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from dose import mutants_to_run

from hostler.sim.scenario import library
from hostler.sim.scenario.format import read_scenario, scenario_text
from hostler.sim.scenario.run import run_scenario
from hostler.sim.scenario.shrink import smallest

from .deployment_defects import DEFECTS
from .evidence import check_passed

if TYPE_CHECKING:
    from .deployment_defects import Defect

MOST = 50
"""Seeds within which a defect must be found; most are by the first."""
CONCERNED = (
    *("src/hostler/sim", "scenarios", "tests/sim/deployment_defects.py", "tests/sim/test_deployment_defects.py"),
    *("src/hostler/engine/deployments", "src/hostler/engine/slices"),
)
"""What finds the defects, and where they are put in."""
PROMISED = (
    "endpoint_not_withdrawn",
    "activated_without_what_it_needs",
    "slices_placed_by_a_former_leader",
    "two_instances_with_one_number",
    "a_drain_stops_halfway",
    "everything_on_one_node",
    "retries_forgotten_by_a_new_leader",
)


def test_the_promised_defects_are_there() -> None:
    assert set(PROMISED) <= {defect.name for defect in DEFECTS}


@pytest.mark.parametrize("defect", mutants_to_run(DEFECTS, *CONCERNED), ids=lambda defect: defect.name)
def test_a_defect_is_found(defect: Defect) -> None:
    scenario = library.find(defect.scenario)
    for seed in range(1, MOST + 1):
        with pytest.MonkeyPatch.context() as patch:
            outcome = run_scenario(scenario, seed, parts=defect.put_in(patch), kept=False, until=defect.invariant)
        check_passed(scenario, run_scenario(scenario, seed, kept=False))
        if defect.invariant in outcome.broken:
            return
    pytest.fail(f"{defect.name}: not found by {MOST} seeds of {defect.scenario}")


def test_what_breaks_a_blueprint_shrinks_and_shows_itself_again() -> None:
    defect = next(defect for defect in DEFECTS if defect.name == "dead_nodes_keep_their_slices")
    scenario = library.find(defect.scenario)
    with pytest.MonkeyPatch.context() as patch:
        parts = defect.put_in(patch)
        failed = run_scenario(scenario, 1, parts=parts, until=defect.invariant)
        assert defect.invariant in failed.broken
        shrunk = smallest(scenario, failed, parts=parts, tries=25)
        file = read_scenario(scenario_text(shrunk.scenario))
        assert len(file.timeline) < len(failed.moments)
        assert defect.invariant in run_scenario(file, parts=parts, kept=False).broken, scenario_text(file)
    sound = run_scenario(file, kept=False)
    assert sound.passed, sound.violations
