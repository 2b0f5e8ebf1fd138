"""The simulator finds bugs: with a defect in one part of the control plane a scenario of the library fails within a few
seeds, its schedule shrinks, and the file that comes of it fails again, with the defect and not without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from dose import dose, mutants_to_run

from hostler.sim.scenario import library
from hostler.sim.scenario.format import read_scenario, scenario_text
from hostler.sim.scenario.run import run_scenario
from hostler.sim.scenario.shrink import smallest

from .defects import DEFECTS
from .evidence import check_passed

if TYPE_CHECKING:
    from hostler.sim.scenario.run import Outcome

    from .defects import Defect

MOST = 1_000
"""Seeds within which a defect must be found; most are by the first."""
TRIES = dose(test=40, full=150)
CONCERNED = (
    *("src/hostler/sim", "scenarios", "tests/sim/defects.py", "tests/sim/test_scenario_defects.py"),
    *(f"src/hostler/engine/{part}" for part in ("agent", "controllers", "labs", "placement", "workloads")),
    *("src/hostler/engine/transfer", "src/hostler/drivers/machines/simulated", "src/hostler/engine/elections.py"),
    *("src/hostler/engine/leadership.py", "src/hostler/drivers/ttl/store.py"),
)
"""What finds the defects, and where they are put in."""
SHRINKS = ("src/hostler/sim/scenario", "tests/sim/defects.py", "tests/sim/test_scenario_defects.py")
"""What shortens a schedule."""
PROMISED = (
    "no_fence_check",
    "event_lost_on_reconnect",
    "fault_domain_ignored",
    "restart_before_the_old_node_is_dead",
    "double_adoption",
    "no_brake",
    "destroyed_without_a_command",
    "fence_reused_after_restore",
    "retention_ignored",
    "commands_of_a_backup_obeyed",
    "new_disk_not_told",
)


def found(defect: Defect) -> Outcome:
    """The first run in which it shows itself. Without it, none of these runs shows anything."""
    scenario = library.find(defect.scenario)
    for seed in range(MOST):
        outcome = run_scenario(scenario, seed, parts=defect.parts(), kept=False, until=defect.invariant)
        check_passed(scenario, run_scenario(scenario, seed, kept=False))
        if defect.invariant in outcome.broken:
            return outcome
    pytest.fail(f"{defect.name}: not found by {MOST} seeds of {defect.scenario}")


def test_there_are_the_promised_defects_and_more_in_every_part() -> None:
    names = [defect.name for defect in DEFECTS]
    assert len(set(names)) == len(names) >= 9
    assert set(PROMISED) <= set(names)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("defect", mutants_to_run(DEFECTS, *CONCERNED), ids=lambda defect: defect.name)
def test_a_defect_is_found(defect: Defect) -> None:
    assert defect.invariant in found(defect).broken


@pytest.mark.timeout(300)
@pytest.mark.parametrize("defect", mutants_to_run(DEFECTS, *SHRINKS), ids=lambda defect: defect.name)
def test_the_shortest_schedule_that_finds_a_defect_finds_it_again(defect: Defect) -> None:
    outcome = found(defect)
    shrunk = smallest(library.find(defect.scenario), outcome, parts=defect.parts(), tries=TRIES)
    text = scenario_text(shrunk.scenario)
    file = read_scenario(text)
    again = run_scenario(file, parts=defect.parts())
    print(
        f"{defect.name}: {defect.scenario} with seed {outcome.seed}: {len(outcome.moments)} moments shrink to\n{text}"
    )
    assert defect.invariant in again.broken, text
    assert again.log_lines() == shrunk.outcome.log_lines(), text
    assert len(file.timeline) <= len(outcome.moments), text
    sound = run_scenario(file, kept=False)
    assert sound.passed, f"{text}\nwithout the defect: {sound.violations}"
