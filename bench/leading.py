"""Services of a leader on a store: those of the composition root, with a real leadership."""

from __future__ import annotations

import asyncio
import random
import secrets
import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from hostler.engine.control_plane import ControlPlane, ControlPlaneConfig
from hostler.engine.elections import Elections
from hostler.engine.runtime.env import Env
from hostler.errors import Conflict
from hostler.keys.families import LEADER
from hostler.kit.clock import SystemClock
from hostler.sim.world.replica import PORTS
from hostler.wiring import ttl_storage_on

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from hostler.engine.leadership import Leadership
    from hostler.engine.service import Service
    from hostler.ports.store import Store

Services = TypeVar("Services", bound="Sequence[Service]")
CONFIG = ControlPlaneConfig()


class _Standing:
    """What a service knows of its replica."""

    def __init__(self, leadership: Leadership) -> None:
        self.leadership = leadership


@asynccontextmanager
async def lead(
    store: Store, choose: Callable[[ControlPlane], Services], config: ControlPlaneConfig = CONFIG
) -> AsyncIterator[Services]:
    """Run the services that `choose` takes from a control plane while the context is open."""
    env = Env(SystemClock(), random.Random(1), lambda: uuid.uuid4().hex, lambda: secrets.token_hex(32))  # noqa: S311
    graph = ControlPlane(store, env, PORTS, config)
    elections = Elections(ttl_storage_on(store), clock=env.clock)
    tasks = [asyncio.create_task(graph.view.run(), name="bench: view")]
    try:
        await graph.view.ready()
        leadership = await elections.acquire(LEADER.fill(n=1), "bench", ttl=60.0)
        if leadership is None:
            raise Conflict("bench: another process leads on this store; give an empty one")
        services = choose(graph)
        for service in services:
            await service.start(_Standing(leadership))
        tasks += [asyncio.create_task(service.run(), name=f"bench: {service.name}") for service in services]
        yield services
        for service in services:
            await service.stop()
    finally:
        for task in reversed(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await elections.aclose()
