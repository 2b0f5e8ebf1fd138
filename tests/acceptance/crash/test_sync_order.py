"""Nothing is acknowledged before it was synced: the system calls of a writer, in their order.

The writer does one thing at a time, so at each acknowledgement everything it has written must be durable: data by a
sync of the same file that began after the write had ended, names by a sync of their folder.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from harness import pace

PROGRAM = Path(__file__).with_name("acknowledging_process.py")
WRITES = ("write", "pwrite64", "writev", "pwritev", "pwritev2", "ftruncate", "fallocate")
SYNCS = ("fsync", "fdatasync")
RENAMES = ("rename", "renameat", "renameat2")
CALL = re.compile(r"^(?P<start>\d+\.\d+) (?P<name>\w+)\((?P<arguments>.*)\) += (?P<result>-?\d+).* <(?P<took>[\d.]+)>$")


class SystemCall(NamedTuple):
    start: float
    end: float
    name: str
    path: str
    arguments: str


def trace(url: str, directory: Path) -> list[SystemCall]:
    """What the writer asked the kernel for, by the instant it began."""
    strace = shutil.which("strace")
    assert strace is not None, "strace: not found; install it (apt install strace, or scripts/setup)"
    wanted = ",".join((*WRITES, *SYNCS, *RENAMES))
    command = [strace, "-ff", "-ttt", "-T", "-y", "-s", "0", "-e", f"trace={wanted}", "-o", str(directory / "trace")]
    acknowledgements = directory / "acknowledgements"
    done = subprocess.run(
        [*command, sys.executable, str(PROGRAM), url, str(acknowledgements)],
        capture_output=True,
        check=False,
        text=True,
        timeout=pace.patience(60),
    )
    assert done.returncode == 0, done.stderr
    calls = [
        parsed(match)
        for path in directory.glob("trace.*")
        for match in map(CALL.match, path.read_text(errors="replace").splitlines())
        if match
    ]
    assert sum(call.path == str(acknowledgements) for call in calls) == 320
    return sorted(calls)


def parsed(match: re.Match[str]) -> SystemCall:
    start, arguments = float(match["start"]), match["arguments"]
    file = re.match(r"(?:AT_FDCWD(?:<[^>]*>)?, )?(?:\d+<(?P<open>[^>]*)>|\"(?P<named>[^\"]*)\")", arguments)
    path = (file["open"] or file["named"] or "") if file else ""
    return SystemCall(start, start + float(match["took"]), match["name"], path, arguments)


def unsynced(calls: list[SystemCall], at: float, path: str) -> list[SystemCall]:
    """Writes to `path` that no sync had made durable by `at`."""
    syncs = [c for c in calls if c.name in SYNCS and c.path == path and c.end <= at]
    last = max((c.start for c in syncs), default=0.0)
    return [c for c in calls if c.name in WRITES and c.path == path and c.start < at and c.end > last]


@pytest.mark.timeout(900)
def test_sqlite_acknowledges_what_its_log_has_synced(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    calls = trace(f"sqlite://{data}/store.db", tmp_path)
    log, store = f"{data}/store.db-wal", f"{data}/store.db"
    assert sum(c.path == log and c.name in WRITES for c in calls) > 320
    for told in (c for c in calls if c.path.endswith("/acknowledgements")):
        assert unsynced(calls, told.start, log) == []
    for again in (c for c in calls if c.path == log and c.name == "pwrite64" and c.arguments.endswith(", 0")):
        assert unsynced(calls, again.start, store) == [], "the log starts again only after the store has what it held"
    assert any(c.path == str(data) and c.name in SYNCS for c in calls), "the folder knows the files"


@pytest.mark.timeout(900)
def test_the_state_file_is_synced_before_it_gets_its_name_and_its_name_before_it_is_acknowledged(
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    calls = trace(f"file://{data}/state.json", tmp_path)
    temporary = f"{data}/state.json.tmp"
    renames = [c for c in calls if c.name in RENAMES and c.path.startswith(str(data))]
    assert len(renames) >= 320
    assert not any(c.path == f"{data}/state.json" and c.name in WRITES for c in calls), "never changed in place"
    for rename in renames:
        assert unsynced(calls, rename.start, temporary) == []
    for told in (c for c in calls if c.path.endswith("/acknowledgements")):
        named = max(c.end for c in renames if c.start < told.start)
        assert any(
            c.name in SYNCS and c.path == str(data) and c.start >= named and c.end <= told.start for c in calls
        ), f"the folder was not synced before the acknowledgement at {told.start}"
