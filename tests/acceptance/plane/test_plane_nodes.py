"""Nodes fail: machines that wait stay put, fenced ones go elsewhere, and none ever runs in two places."""

from __future__ import annotations

from pathlib import Path

import pytest
from apart import run_apart
from dose import dose
from harness import pace

ROUNDS = dose(test=1, full=6)


@pytest.mark.timeout(500 * ROUNDS)
async def test_nodes_are_killed_suspended_cut_off_and_switched_off(tmp_path: Path) -> None:
    """In namespaces of its own, which end with the process."""
    found = await run_apart("plane.nodes_process", tmp_path, ROUNDS, within=pace.patience(150 * ROUNDS))
    assert found["moved"] >= 3 * ROUNDS, found
    assert found["commands"] > 20, found
