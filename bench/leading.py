"""A leader's services on a store, with a view of their own and a real leadership."""

from __future__ import annotations

import asyncio
import random
import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from hostler.engine.decision_recorder import Tracer
from hostler.engine.elections import Elections
from hostler.engine.view import View
from hostler.errors import Conflict
from hostler.keys.families import LEADER
from hostler.kit.clock import SystemClock
from hostler.wiring import ttl_storage_on

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from hostler.engine.leadership import Leadership
    from hostler.engine.service import Service
    from hostler.kit.clock import Clock
    from hostler.ports.store import Store

S = TypeVar("S", bound="Service")
Services = TypeVar("Services", bound="tuple[Service, ...]")


class _Standing:
    """What a service knows of its replica."""

    def __init__(self, leadership: Leadership) -> None:
        self.leadership = leadership


@asynccontextmanager
async def leading(
    store: Store, actor: str, make: Callable[[View, Clock, random.Random, Tracer], S]
) -> AsyncIterator[tuple[S, View]]:
    """Run the controller that `make` creates while the context is open."""

    def made(view: View, clock: Clock, rng: random.Random) -> tuple[S]:
        return (make(view, clock, rng, Tracer(clock, lambda: uuid.uuid4().hex, actor)),)

    async with led(store, made) as ((controller,), view):
        yield controller, view


@asynccontextmanager
async def led(
    store: Store, make: Callable[[View, Clock, random.Random], Services]
) -> AsyncIterator[tuple[Services, View]]:
    """Run the services that `make` creates while the context is open."""
    clock, rng = SystemClock(), random.Random(1)  # noqa: S311 - spreads retries
    view = View(store, clock=clock, rng=rng)
    elections = Elections(ttl_storage_on(store), clock=clock)
    tasks = [asyncio.create_task(view.run(), name="bench: view")]
    try:
        await view.ready()
        leadership = await elections.acquire(LEADER.fill(n=1), "bench", ttl=60.0)
        if leadership is None:
            raise Conflict("bench: another process leads on this store; give an empty one")
        services = make(view, clock, rng)
        for service in services:
            await service.start(_Standing(leadership))
        tasks += [asyncio.create_task(service.run(), name=f"bench: {service.name}") for service in services]
        yield services, view
        for service in services:
            await service.stop()
    finally:
        for task in reversed(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await elections.aclose()
