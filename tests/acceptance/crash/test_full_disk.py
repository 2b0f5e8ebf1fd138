"""A full disk: a clear error, nothing lost, and writes again once there is room."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from dose import dose
from harness import pace
from harness.artefacts import safe

PROGRAM = Path(__file__).with_name("full_disk_process.py")


@pytest.mark.parametrize("engine", ["sqlite", "file"])
def test_a_full_disk_refuses_writes_clearly_and_loses_nothing(engine: str, tmp_path: Path) -> None:
    rounds = dose(test=2, full=40)
    namespaces = ["--mount"] if os.geteuid() == 0 else ["--mount", "--user", "--map-root-user"]
    done = subprocess.run(
        ["unshare", *namespaces, sys.executable, str(PROGRAM), engine, str(tmp_path), "6", str(rounds)],
        capture_output=True,
        check=False,
        text=True,
        timeout=pace.patience(60),
    )
    safe(done.returncode == 0, done.stderr)
    story = json.loads(done.stdout)
    print(
        f"{engine}: {rounds} rounds, {story['written']} writes taken, {story['refused']} refused; {story['messages']}"
    )
    assert story["refused"] >= 20 * rounds
    assert story["messages"]
    for message in story["messages"]:
        assert "no space" in message, "the message says what to do about it"
        assert "nothing was written" in message
    assert not [name for name in story["names"] if name.endswith((".tmp", ".new"))]
