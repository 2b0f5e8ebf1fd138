"""`scripts/setup`, beside another one of the same checkout."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

SETUP = Path(__file__).parents[2] / "scripts" / "setup"


def test_a_second_setup_of_a_checkout_says_that_it_waits_and_goes_on_after_the_first(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    script = shutil.copy(SETUP, tmp_path / "scripts")
    (tmp_path / ".local").mkdir()
    with (tmp_path / ".local" / "setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = subprocess.Popen([script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert second.stdout is not None
        assert second.stdout.readline() == "setup: another set-up is under way here; waiting …\n"
        assert second.poll() is None
    said, _ = second.communicate(timeout=120)
    assert said == "setup: say what for: scripts/setup run | scripts/setup test\n"
