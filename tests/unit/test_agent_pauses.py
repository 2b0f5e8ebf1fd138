"""After which failures an agent waits for how long: what is the place's ends for all machines at once."""

from __future__ import annotations

import random

import pytest

from hostler.engine.agent.decide import Action, Step
from hostler.engine.agent.status_reporter import LONGEST_PAUSE, ReportedMachine
from hostler.errors import Forbidden, HostlerError, TooManyTries, Unavailable
from hostler.keys.entry import Entry
from hostler.model.node import VmCommand
from hostler.model.vm import VmSpec

STEP = Step(Action.DELETE)


def last_pause(error: HostlerError, failures: int) -> tuple[float, int]:
    command = VmCommand(org="o", project="p", vm="v", name="n", spec=VmSpec(cpus=1, memory_mib=256), generation=1)
    known, rng = ReportedMachine(Entry(command, {}, "k", 1, 1, 1)), random.Random(1)
    for _ in range(failures):
        known.record_failure(STEP, "why", 100.0, rng, error=error)
    return known.put_off[STEP].until - 100.0, known.failures


@pytest.mark.parametrize(
    ("error", "least", "most"),
    [
        (Unavailable("x"), LONGEST_PAUSE / 2, LONGEST_PAUSE),
        (TooManyTries("x", 3.0), 3.0, 4.0),
        (Forbidden("x"), 5.0, 20.0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_after_many_failures_the_pause_is_long_only_if_the_machine_is_the_cause(
    error: HostlerError, least: float, most: float
) -> None:
    found, _ = last_pause(error, 12)
    assert least <= found <= most


def test_what_was_not_tried_for_too_many_calls_is_no_failure_of_the_machine() -> None:
    assert last_pause(TooManyTries("x", 0.0), 12)[1] == 1
