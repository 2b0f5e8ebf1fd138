"""The guests of the other tests of QEMU are used here too."""

from __future__ import annotations

import sys
from pathlib import Path

GUESTS = str(Path(__file__).parents[1] / "qemu")
if GUESTS not in sys.path:
    sys.path.append(GUESTS)
