"""Tests with real processes and servers have the time that a machine needs which is busy with other tests."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
WITHIN = 400.0
"""Seconds for a test that says nothing else, and takes a few where nothing else runs."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("timeout", None) is not None:  # whoever runs them knows better
        return
    for item in items:
        below = item.path.is_relative_to(HERE) and not item.path.relative_to(HERE).parts[0].startswith("qemu")
        if below and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(WITHIN))
