"""The drivers, by URL: a suite that asks for `driver` runs once for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import hostler

if TYPE_CHECKING:
    from pathlib import Path

    from hostler.testing.servers import EtcdCluster

DRIVERS = ("memory", "file", "sqlite", "etcd", "etcd-cluster")


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
    return open_driver(request.param, tmp_path, request)


def open_driver(name: str, folder: Path, request: pytest.FixtureRequest) -> Driver:
    """One of DRIVERS, with its data in a folder or on a shared server."""
    if name == "memory":
        return Driver(name, "memory://")
    if name == "file":
        return Driver(name, f"file://{folder}/state.json")
    if name == "sqlite":
        return Driver(name, f"sqlite://{folder}/state.db")
    server: EtcdCluster = request.getfixturevalue(name.replace("-", "_"))
    return Driver(name, server.url)
