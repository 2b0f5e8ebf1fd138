"""Tests with real processes and servers have the time that a machine needs which is busy with other tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import time_limit

if TYPE_CHECKING:
    import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    time_limit.give(400.0, Path(__file__).parent, config, items, but="qemu")
