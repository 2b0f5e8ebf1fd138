"""Time limits for whole folders of tests, where that of all tests is short on a machine that is busy with others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def give(within: float, folder: Path, config: pytest.Config, items: Iterable[pytest.Item], *, but: str = "-") -> None:
    """Tests below a folder have so many seconds if they say nothing else; not those whose path begins with `but`."""
    if config.getoption("timeout", None) is not None:  # whoever runs them knows better
        return
    for item in items:
        below = item.path.is_relative_to(folder) and not str(item.path.relative_to(folder)).startswith(but)
        if below and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(within))
