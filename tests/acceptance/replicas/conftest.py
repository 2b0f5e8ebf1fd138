"""The storages that replicas are tried on, each a real server or a real file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from troupe import Stage

from hostler.testing.servers import EtcdServer
from hostler.testing.ttl_servers import RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def own_etcd() -> Iterator[EtcdServer]:
    with EtcdServer() as server:
        yield server


@pytest.fixture(scope="module")
def own_redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def place(request: pytest.FixtureRequest) -> EtcdServer | RedisServer | None:
    """The server that the test is parametrized with; None for the embedded store, which has none."""
    # Asked for by a fixture of the module's scope, so that no test takes the server for a process it left behind.
    return None if request.param == "sqlite" else request.getfixturevalue(f"own_{request.param}")


@pytest.fixture
def stage(place: EtcdServer | RedisServer | None, tmp_path: Path) -> Stage:
    """To be entered by the test."""
    return Stage(f"sqlite://{tmp_path}/store.db" if place is None else place.url, tmp_path)
