"""Which part of a failing scenario is left: asked of runs that are made up, so that it is known what is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from hostler.sim.invariants import Verdict, Violation
from hostler.sim.scenario import shrink as shrinking
from hostler.sim.scenario.format import read_scenario
from hostler.sim.scenario.run import Outcome
from hostler.sim.scenario.shrink import smallest

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.sim.scenario.scenario import Scenario

SCENARIO = """
name: tried
about: for a test
length: 300
inventory:
  racks:
    - name: r1
      pdus: [{name: pdu1, ports: 5}]
      tors: [{name: tor1, ports: 4}]
      blades: {count: 4, prefix: b, cpus: 4, memory: 8GiB}
timeline:
  - {at: 10, fault: blade_crash, on: r1/b1, for: 5}
  - {at: 20, fault: blade_crash, on: r1/b2, for: 5}
  - {at: 30, fault: blade_crash, on: r1/b3, for: 5}
  - {at: 40, fault: blade_crash, on: r1/b4, for: 5}
"""


def ran(monkeypatch: pytest.MonkeyPatch, breaks_at: Callable[[frozenset[str], int], float | None]) -> list[int]:
    """Have runs break when the blades that crash, and the seed, say so, if they last so long; the seeds asked for."""
    seeds: list[int] = []

    def run(scenario: Scenario, seed: int | None = None, **_: Any) -> Outcome:
        seed = scenario.seed if seed is None else seed
        seeds.append(seed)
        at = breaks_at(frozenset(moment.document()["on"][-2:] for moment in scenario.timeline), seed)
        found = []
        if at is not None and at <= scenario.length:
            found = [Violation(invariant="no_vm_twice", at=at, component="vm a", text="ran twice")]
        verdict = Verdict(invariant="no_vm_twice", looks=1, found=len(found), violations=tuple(found))
        return Outcome(scenario=scenario.name, seed=seed, verdicts=(verdict,), moments=scenario.timeline)

    monkeypatch.setattr(shrinking, "run_scenario", run)
    return seeds


def shrunk(**options: Any) -> tuple[list[str], Any]:
    scenario, runs = read_scenario(SCENARIO), vars(shrinking)["run_scenario"]
    found = smallest(scenario, runs(scenario, 5), **options)
    return [moment.document()["on"] for moment in found.scenario.timeline], found


def test_what_it_fails_without_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    ran(monkeypatch, lambda blades, _: 50.0 if {"b2", "b4"} <= blades else None)
    left, found = shrunk()
    assert left == ["r1/b2", "r1/b4"]
    assert (found.scenario.seed, found.complete, found.scenario.length) == (5, True, 51)


def test_what_comes_a_little_later_without_something_comes_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    ran(monkeypatch, lambda blades, _: None if "b2" not in blades else 70.0 - 4 * len(blades))
    left, found = shrunk()
    assert left == ["r1/b2"]
    assert found.scenario.length == 67


def test_what_is_needed_with_one_seed_only_is_left_out_with_another(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = {5: {"b1", "b2", "b4"}, 6: {"b1", "b2", "b3", "b4"}, 7: {"b2", "b4"}, 8: {"b2"}}
    seeds = ran(monkeypatch, lambda blades, seed: 50.0 if needed.get(seed, {"b9"}) <= blades else None)
    left, found = shrunk()
    assert left == ["r1/b2"]
    assert found.scenario.seed == 8
    assert "with seed 5" in found.scenario.about
    assert found.outcome.broken == {"no_vm_twice"}
    assert max(seeds) <= 8 + shrinking.OTHERS


def test_it_asks_no_more_often_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = ran(monkeypatch, lambda blades, _: 50.0 if len(blades) == 4 else None)
    left, found = shrunk(tries=9)
    assert len(left) == 4
    assert found.tries == 9
    assert len(seeds) == 1 + 9 + 1  # the one that failed, and the proof
