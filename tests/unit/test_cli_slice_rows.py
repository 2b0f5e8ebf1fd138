"""What `hostler slice list` says of an instance."""

from __future__ import annotations

import pytest

from hostler.entry.cli.slice import read
from hostler.model.deployment import SliceState
from hostler.model.slice_api import SliceInstanceView, SliceView


@pytest.mark.parametrize(
    ("state", "ready", "said"),
    [
        (SliceState.LOADING, False, "LOADING"),
        (SliceState.FAILED, False, "FAILED"),
        (SliceState.ACTIVE, True, "ACTIVE"),
        (SliceState.ACTIVE, False, "ACTIVE, restarting"),
    ],
)
def test_only_what_ran_is_starting_again(state: SliceState, ready: bool, said: str) -> None:
    one = SliceInstanceView(instance=1, state=state, ready=ready, since=0, restarts=0, template=0, why="fewest of it")
    view = SliceView(
        node="n1", artifact="org.example:greeting:1.0.0", state=state, instances=(one,), methods=(), revision=1
    )
    assert said in read._row(view, one)
