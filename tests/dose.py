"""How much of a long campaign to run.

`make test` runs a small dose of each, `make soak DOSE=1` the full one, `make soak DOSE=5` five times that.
"""

from __future__ import annotations

import math
import os


def dose(*, test: int, full: int) -> int:
    """How many rounds: `test` in `make test`, `full` times DOSE in `make soak`."""
    asked = os.environ.get("HOSTLER_DOSE")
    return test if not asked else max(test, math.ceil(full * float(asked)))
