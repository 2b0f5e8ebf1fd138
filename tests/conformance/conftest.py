"""The drivers, by URL: a suite that asks for `driver` runs once for each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import hostler

if TYPE_CHECKING:
    from hostler.testing.servers import EtcdCluster

HERE = Path(__file__).parent
WITHIN = 400.0
"""Seconds for a test that says nothing else: servers answer late where all other tests run beside."""
DRIVERS = ("memory", "file", "sqlite", "etcd", "etcd-cluster")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("timeout", None) is not None:  # whoever runs them knows better
        return
    for item in items:
        if item.path.parent == HERE and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(WITHIN))


class Driver:
    """A driver under test: opens stores on the same data each time."""

    def __init__(self, name: str, url: str) -> None:
        self.name, self.url = name, url
        self.persistent = name != "memory"

    def open(self) -> hostler.Store:
        return hostler.open_store(self.url)


@pytest.fixture
def driver(request: pytest.FixtureRequest, tmp_path: Path) -> Driver:
    """By indirect parameter: one of DRIVERS, with its data in a folder of its own or on a shared server."""
    name: str = request.param
    if name == "memory":
        return Driver(name, "memory://")
    if name == "file":
        return Driver(name, f"file://{tmp_path}/state.json")
    if name == "sqlite":
        return Driver(name, f"sqlite://{tmp_path}/state.db")
    server: EtcdCluster = request.getfixturevalue(name.replace("-", "_"))
    return Driver(name, server.url)
