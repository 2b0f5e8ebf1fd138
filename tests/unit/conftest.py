"""Most unit tests take no time at all; on a machine that is busy with others they may."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
WITHIN = 400.0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("timeout", None) is not None:  # whoever runs them knows better
        return
    for item in items:
        if item.path.parent == HERE and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(WITHIN))
