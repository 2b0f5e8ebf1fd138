"""`python -m bench invoke` measures what it says, at a small size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from dose import rotates

from bench.__main__ import main
from bench.invoke import _rates
from bench.plane_http import MeasuredServer


@pytest.mark.slow
@rotates(3, "bench")
def test_calls_stand_beside_a_bare_framework_and_beside_the_worker_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, page = tmp_path / "found.json", tmp_path / "found.md"
    assert main(["invoke", "--seconds", "0.2", "--json", str(found), "--markdown", str(page)]) == 0
    rate, share, way, over = json.loads(found.read_text())["rows"]
    assert rate["found"] > 0
    assert rate["other"] > 0
    assert (share["found"], share["wanted"]) == (rate["ratio"], 0.5)
    assert way["found"] > way["other"] > 0
    assert over["found"] == pytest.approx(way["found"] - way["other"])
    assert over["wanted"] == 2
    assert "| calls over HTTP, 16 connections |" in page.read_text()
    assert "straight to the worker" in capsys.readouterr().out


async def test_a_round_that_takes_less_than_a_tick_of_the_processor_has_a_ratio_too() -> None:
    class Idle:
        def cpu(self) -> float:
            return 1.0

    idle: Any = Idle()
    sides = [MeasuredServer(idle, [], b""), MeasuredServer(idle, [], b"")]
    for side in sides:
        for _ in range(2):
            await side.round(0.01)
        side.rates = [1.0, 1.0]
    assert _rates(*sides)[0].cpu_ratio == 1.0
