"""The environment in which modules of this package run as separate processes."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def child_environ(**more: str) -> dict[str, str]:
    """Return this environment, in which `python -m bench.…` finds the package from every working directory."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **more}
