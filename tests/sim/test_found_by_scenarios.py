"""Seeds with which scenarios have found bugs: they hold since. Each bug stands in docs/found-bugs.md."""

from __future__ import annotations

import pytest

from hostler.sim.scenario.library import find
from hostler.sim.scenario.run import run_scenario

from .evidence import check_passed


@pytest.mark.parametrize(
    ("scenario", "seed"),
    [
        # Two machines that must be apart departed to the same node at the same time: rules did not know of those on
        # their way.
        ("anti-affinity-on-the-move", 106),
        ("anti-affinity-on-the-move", 107),
    ],
)
def test_it_holds_since(scenario: str, seed: int) -> None:
    check_passed(find(scenario), run_scenario(find(scenario), seed))
