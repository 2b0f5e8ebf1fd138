"""Services, and the pipeline that starts them in order and stops them in reverse."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from hostler.errors import HostlerError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostler.engine.elections import Leadership


class Standing(Protocol):
    """What a service knows of the replica that runs it."""

    @property
    def leadership(self) -> Leadership:
        """The key that the replica holds now; it may change from a higher one to key 1 while a service runs."""


class Service(Protocol):
    """Something that a replica runs while it holds a key."""

    @property
    def name(self) -> str:
        """For people."""

    async def start(self, standing: Standing) -> None:
        """Be ready when this returns. What it raises is the replica's problem, and what was started is stopped."""

    async def run(self) -> None:
        """Work until cancelled. Returning or raising before that is the replica's problem."""

    async def stop(self) -> None:
        """Let go of everything. Called once, after `run` has ended, also when it failed."""


class ServiceFailed(HostlerError):
    """A service could not start, ended by itself, or did not stop well."""


class Pipeline:
    """Services that run together."""

    def __init__(self, services: Sequence[Service], failed: Callable[[Exception], None]) -> None:
        self._services = tuple(services)
        self._failed = failed
        self._running: list[tuple[Service, asyncio.Task[None]]] = []
        self._stopping: asyncio.Task[None] | None = None

    async def start(self, standing: Standing) -> None:
        """Start all, in order. ServiceFailed: one could not; those before it still run and want to be stopped."""
        for service in self._services:
            if self._stopping is not None:
                return
            try:
                await service.start(standing)
            except Exception as error:
                await self._let_go(service)
                raise ServiceFailed(f"service {service.name}: could not start: {error}") from error
            task = asyncio.create_task(self._run(service), name=f"service {service.name}")
            self._running.append((service, task))

    async def stop(self) -> None:
        """Stop all, in reverse. Several may ask; all wait for the one stop."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(), name="services: stopping")
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        while self._running:
            service, task = self._running.pop()
            task.cancel()
            await asyncio.wait((task,))
            await self._let_go(service)

    async def _run(self, service: Service) -> None:
        try:
            await service.run()
        except Exception as error:  # noqa: BLE001 - whatever it was, it is the replica's problem
            failure = ServiceFailed(f"service {service.name}: failed: {error}")
            failure.__cause__ = error
            self._failed(failure)
        else:
            self._failed(ServiceFailed(f"service {service.name}: ended by itself"))

    async def _let_go(self, service: Service) -> None:
        try:
            await service.stop()
        except Exception as error:  # noqa: BLE001 - the others still have to be stopped
            failure = ServiceFailed(f"service {service.name}: did not stop well: {error}")
            failure.__cause__ = error
            self._failed(failure)
