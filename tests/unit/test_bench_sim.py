"""`python -m bench sim` measures what it says, at a small size."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from dose import rotates

from bench.__main__ import main

SMALL = (
    *("--blades", "20", "--machines", "40", "--ratio-blades", "3", "--ratio-seconds", "60"),
    *("--nodes", "100", "--instances", "500", "--curve", "20"),
)


@pytest.fixture(autouse=True)
def _frozen() -> Iterator[None]:
    """What other tests left stays out of garbage collection: the bench takes back what it froze, and all else."""
    yield
    gc.freeze()


@pytest.mark.slow
@rotates(3, "bench")
def test_every_part_is_measured_beside_what_was_wanted(tmp_path: Path) -> None:
    found, page = tmp_path / "found.json", tmp_path / "found.md"
    assert main(["sim", *SMALL, "--json", str(found), "--markdown", str(page)]) == 0
    rows = {row["what"]: row for row in json.loads(found.read_text())["rows"]}
    end = rows["20 blades, 40 machines: run in the end"]
    assert (end["found"], end["wanted"]) == (40, 40)
    wanted = {row["wanted"] for row in rows.values()} - {None}
    assert wanted == {120, 4, 40, 1_000, 50_000}
    assert all(row["found"] > 0 for what, row in rows.items() if "fails" not in what)
    assert next(row["ratio"] for what, row in rows.items() if "fails" in what) == 1.0
    assert "500 instances on 100 nodes" in page.read_text()


def test_sizes_that_cannot_be_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "--curve", "1,x"]) == 2
    assert "whole numbers" in capsys.readouterr().err
