"""Start-up cost of the command line: processor time of `hostler --help`, compared with Python's start."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

from bench.report import Row

WANTED = 0.3
COMMANDS = (("hostler --help", ["--help"]), ("hostler vm list --help", ["vm", "list", "--help"]))


def measure(times: int) -> list[Row]:
    """Measure the median of several runs, alternating with a Python process that does nothing."""
    rows = []
    for name, arguments in COMMANDS:
        ours, bare = [], []
        for _ in range(times):
            ours.append(_cpu([sys.executable, "-m", "hostler", *arguments]))
            bare.append(_cpu([sys.executable, "-c", "pass"]))
        found, other = statistics.median(ours), statistics.median(bare)
        rows.append(
            Row(
                what=name,
                found=found,
                unit="s of CPU",
                wanted=WANTED,
                at_most=True,
                against="python -c pass",
                other=other,
                ratio=found / other,
            )
        )
    return rows


def _cpu(command: list[str]) -> float:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command)
    return usage.ru_utime + usage.ru_stime
