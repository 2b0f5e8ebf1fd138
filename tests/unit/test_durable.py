"""A file that is written whole is the old one or the new one, whenever its writer is killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from hostler.kit.fsync import write_whole

if TYPE_CHECKING:
    from pathlib import Path

WRITER = """
import sys
from pathlib import Path
from hostler.kit.fsync import write_whole
path, number = Path(sys.argv[1]), 0
print("ready", flush=True)
while True:
    number += 1
    write_whole(path, b"%d\\n" % number * 20_000)
"""


def test_kill_9_at_any_moment_leaves_the_old_or_the_new_file(tmp_path: Path) -> None:
    path, rng = tmp_path / "file", random.Random(1)
    write_whole(path, b"0\n" * 20_000)
    for _ in range(4):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(rng.uniform(0.0, 0.03))
            writer.send_signal(signal.SIGKILL)
        lines = path.read_bytes().splitlines()
        assert len(lines) == 20_000
        assert len(set(lines)) == 1


@pytest.mark.parametrize("step", ["fsync", "rename"])
def test_what_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace" if step == "rename" else step, fail)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
