"""Slices as processes keep every claim that is made of what runs slices."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from dose import dose, rotation
from slicing import publish

from hostler.drivers.slices.process.driver import ProcessSlices
from hostler.ports.slices import Run
from hostler.testing import SliceClaim, SliceSetup, slice_claims

SOURCE = "from hostler.slices import method\n@method\nasync def echo(text: str) -> str:\n    return text\n"


async def crash(slices: ProcessSlices, run: Run) -> None:
    pid = slices.pid_of(run)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


SETUP = SliceSetup(
    broken="org:check:broken",
    failing="org:check:failing",
    crash=crash,
    leave=lambda slices: slices.aclose(stop=False),
    points=dose(test=2, full=40),
    turn=rotation(),
)


@pytest.mark.parametrize("claim", slice_claims(), ids=str)
async def test_processes_keep_the_claims_of_slices(claim: SliceClaim, tmp_path: Path) -> None:
    sources = {
        "1": SOURCE,
        "2": SOURCE,
        "broken": f"import nothing_like_that\n{SOURCE}",
        "failing": f"{SOURCE}\ndef start(): 1 / 0",
    }
    for version, source in sources.items():
        artifacts = await publish(tmp_path, f"org:check:{version}", source)
    await claim.check(lambda: ProcessSlices(tmp_path / "slices", artifacts), setup=SETUP)
