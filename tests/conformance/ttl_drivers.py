"""The ttl storages that claims are tried on, and clients of them."""

from __future__ import annotations

import itertools
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from running import shared_etcd, ttl_server

import hostler
from hostler.drivers.store.memory import MemoryStore
from hostler.drivers.ttl.store import StoreTtlStorage
from hostler.testing import VirtualClock

from .together import Lent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from hostler.ports.ttl import TtlStorage

    Open = Callable[[], TtlStorage]
    Opener = Callable[[str], Open]

LOCAL = ("sqlite", "file")
REMOTE = ("etcd", "redis", "dynamodb", "cassandra")
DRIVERS = ("memory", *LOCAL, *REMOTE)
REAL = (*LOCAL, *REMOTE)
"""Those whose records live in real time. What waits in memory is tried in virtual time."""
NEAR = ("memory", *LOCAL, "etcd", "redis")
FAR = ("dynamodb", "cassandra")
"""Their clients take long to make, so claims share them."""
WATCHABLE = ("memory", "sqlite", "file", "etcd", "redis")
CLIENTS = 4
"""Clients of a server that claims share."""


def url_of(driver: str, folder: Path) -> str:
    if driver == "memory":
        return "memory://"
    if driver in LOCAL:
        return f"{driver}://{folder}/state"
    return shared_etcd("etcd").url if driver == "etcd" else ttl_server(driver).url


def virtual() -> TtlStorage:
    return StoreTtlStorage(MemoryStore(clock=VirtualClock()))


@asynccontextmanager
async def opener(driver: str, folder: Path) -> AsyncIterator[Opener]:
    """What opens clients for a claim by its name: each has a file of its own, or takes turns with few clients."""
    if driver in LOCAL:

        def own(claim: str) -> Open:
            place = folder / driver / claim
            place.mkdir(parents=True)
            return lambda: hostler.open_ttl_storage(url_of(driver, place))

        yield own
        return
    async with AsyncExitStack() as stack:
        clients: list[Any] = [
            await stack.enter_async_context(hostler.open_ttl_storage(url_of(driver, folder))) for _ in range(CLIENTS)
        ]
        turn = itertools.cycle(clients)
        yield lambda _: lambda: Lent(next(turn))  # type: ignore[return-value]
