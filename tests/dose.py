"""How much of a long campaign to run, and which seeds.

`make test` runs a small dose of each campaign, `make soak` the full one, `make soak DOSE=5` five times that. The
seeds of `make test` rotate with the commit, so that every seed of the pool is used within a few commits.
`TEST_SEED=N` repeats a run: the report of every run names its number.
"""

from __future__ import annotations

import functools
import math
import os
import subprocess
from pathlib import Path

VARIABLE = "TEST_SEED"


def dose(*, test: int, full: int) -> int:
    """Return how many rounds to run: `test` in `make test`, `full` times DOSE in `make soak`."""
    asked = os.environ.get("HOSTLER_DOSE")
    return test if not asked else max(test, math.ceil(full * float(asked)))


def seeds(*, test: int, pool: int, full: int | None = None) -> list[int]:
    """Return the seeds to run: `test` of the numbers below `pool` in `make test`, others with each commit.

    In `make soak` all of them, or all below `full` times DOSE.
    """
    asked = os.environ.get("HOSTLER_DOSE")
    if asked:
        return list(range(max(pool, math.ceil((full or pool) * float(asked)))))
    first = rotation() * test
    return sorted({(first + number) % pool for number in range(min(test, pool))})


@functools.cache
def rotation() -> int:
    """Return the number that chooses the seeds of this run: that of the commit, unless TEST_SEED says another."""
    asked = os.environ.get(VARIABLE)
    if asked:
        return int(asked)
    counted = subprocess.run(
        ["git", "rev-list", "--count", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    number = int(counted.stdout) if counted.returncode == 0 else 0
    os.environ[VARIABLE] = str(number)  # the workers of this run use the same
    return number
