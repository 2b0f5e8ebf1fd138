"""Random faults, drawn from a seed; the same seed always gives the same faults."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from hostler.sim.fault import fault_of
from hostler.sim.scenario.scenario import Moment

if TYPE_CHECKING:
    from hostler.sim.scenario.scenario import Chance, Scenario

MOST = 10_000
"""Most faults that one chance draws in a run."""


def drawn(scenario: Scenario, seed: int) -> tuple[Moment, ...]:
    """Return all events of a run with this seed, by time: the timeline, and one moment for each drawn fault."""
    moments = list(scenario.timeline)
    for number, chance in enumerate(scenario.chances):
        rng = random.Random(f"{seed} chance {number}")  # noqa: S311 - no security
        moments += _draw(chance, scenario.length, rng)
    return tuple(sorted(moments, key=lambda moment: moment.at))  # stable: keeps the order of the file


def _draw(chance: Chance, length: float, rng: random.Random) -> list[Moment]:
    moments: list[Moment] = []
    at = 0.0
    while len(moments) < MOST:
        at = round(at + rng.expovariate(chance.per_hour / 3600.0), 3)
        if at >= length:
            break
        fields = dict(chance.fields)
        if chance.on:
            fields["on"] = rng.choice(chance.on)
        if chance.least is not None and chance.most is not None:
            fields["for"] = round(rng.uniform(chance.least, chance.most), 3)
        moments.append(Moment(at=at, what=fault_of(fields), written=fields, drawn=True))
    return moments
