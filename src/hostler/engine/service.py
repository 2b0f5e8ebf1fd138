"""Services, and the pipeline that starts them in order and stops them in reverse."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from hostler.errors import HostlerError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostler.engine.elections import Leadership


class Standing(Protocol):
    """The view that a service has of the replica that runs it."""

    @property
    def leadership(self) -> Leadership:
        """Return the key that the replica holds now; it may change from a higher one to key 1 while a service runs."""


def leadership_of(standing: Standing | None, service: str) -> Leadership:
    """Return the leadership that the replica holds now. LeadershipLost: none."""
    if standing is None:
        raise RuntimeError(f"{service}: used before it was started")
    leadership = standing.leadership
    leadership.check()
    return leadership


class Service(Protocol):
    """A unit of work that a replica runs while it holds a key."""

    @property
    def name(self) -> str:
        """Return the name for messages."""

    async def start(self, standing: Standing) -> None:
        """Be ready when this returns. An exception becomes the replica's problem, and everything started is stopped.

        Cancelled if the replica must stop during the start.
        """

    async def run(self) -> None:
        """Work until cancelled. Returning or raising before that becomes the replica's problem."""

    async def stop(self) -> None:
        """Release everything. Called once, after `run` has ended, also if it or `start` failed or was cancelled."""


class ServiceFailed(HostlerError):
    """A service could not start, ended by itself, or failed to stop."""


class Pipeline:
    """Services that run together. Started once, stopped once; a stopped pipeline starts nothing more."""

    def __init__(self, services: Sequence[Service], failed: Callable[[Exception], None]) -> None:
        self._services = tuple(services)
        self._failed = failed
        self._running: list[tuple[Service, asyncio.Task[None]]] = []
        self._starting: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None

    async def start(self, standing: Standing) -> None:
        """Start all services in order.

        ServiceFailed: one could not start; those before it still run and must be stopped.

        Returns early if the pipeline is stopped during the start.
        """
        if self._stopping is not None:
            return
        starting = self._starting = asyncio.create_task(self._start(standing), name="services: starting")
        try:
            await asyncio.wait((starting,))
        finally:
            await _cancel(starting)
        if not starting.cancelled():
            starting.result()
        elif self._stopping is None:
            raise ServiceFailed("services: the start was cancelled")

    async def stop(self) -> None:
        """Stop all services in reverse order, including one that is starting.

        Concurrent callers wait for the same stop.
        """
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(), name="services: stopping")
        await asyncio.shield(self._stopping)

    async def _start(self, standing: Standing) -> None:
        for service in self._services:
            try:
                await service.start(standing)
            except BaseException as error:
                await self._let_go(service)
                if isinstance(error, Exception):
                    raise ServiceFailed(f"service {service.name}: could not start: {error}") from error
                raise
            if self._stopping is not None:  # the service ignored the cancellation
                await self._let_go(service)
                return
            task = asyncio.create_task(self._run(service), name=f"service {service.name}")
            self._running.append((service, task))

    async def _stop(self) -> None:
        if self._starting is not None:
            await _cancel(self._starting)
        while self._running:
            service, task = self._running.pop()
            task.cancel()
            await asyncio.wait((task,))
            await self._let_go(service)

    async def _run(self, service: Service) -> None:
        try:
            await service.run()
        except asyncio.CancelledError:
            if self._stopping is None:  # cancelled from inside, which counts as an error
                self._failed(ServiceFailed(f"service {service.name}: ended by itself: cancelled"))
        except Exception as error:  # noqa: BLE001 - any error becomes the replica's problem
            self._report(f"service {service.name}: failed: {error}", error)
        else:
            if self._stopping is None:
                self._failed(ServiceFailed(f"service {service.name}: ended by itself"))

    async def _let_go(self, service: Service) -> None:
        stopping = asyncio.create_task(_stop(service), name=f"service {service.name}: stopping")
        await asyncio.wait((stopping,))  # even if it fails, the others must be stopped
        if stopping.cancelled():
            self._failed(ServiceFailed(f"service {service.name}: failed to stop: cancelled"))
        elif (error := stopping.exception()) is not None:
            self._report(f"service {service.name}: failed to stop: {error}", error)

    def _report(self, message: str, cause: BaseException) -> None:
        failure = ServiceFailed(message)
        failure.__cause__ = cause
        self._failed(failure)


async def _cancel(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait until it has ended. It is cancelled once: a second time would interrupt its cleanup."""
    if not task.done():
        if not task.cancelling():
            task.cancel()
        await asyncio.wait((task,))


async def _stop(service: Service) -> None:
    await service.stop()
