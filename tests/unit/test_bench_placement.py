"""`python -m bench placement` measures what it says, and refuses what it cannot measure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.placement import REQUESTS


@pytest.mark.slow
def test_every_kind_of_request_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, page = tmp_path / "found.json", tmp_path / "found.md"
    arguments = ["--nodes", "50", "--seconds", "0.1", "--json", str(found), "--markdown", str(page)]
    assert main(["placement", *arguments]) == 0
    rows = json.loads(found.read_text())["rows"]
    assert [(row["request"], row["nodes"]) for row in rows] == [(request, 50) for request in REQUESTS]
    assert all(row["per_second"] > 0 for row in rows)
    assert [row["placed"] > 0 for row in rows] == [True, True, True, False, False]
    assert "| plain | 50 |" in page.read_text()
    assert "plain" in capsys.readouterr().out


@pytest.mark.parametrize("nodes", ["", "0", "9", "many", "100,", "1000000"])
def test_a_size_that_makes_no_sense_is_refused(nodes: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["placement", "--nodes", nodes]) == 2
    assert "like 100,1000,5000" in capsys.readouterr().err
