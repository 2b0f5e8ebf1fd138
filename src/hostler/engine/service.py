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


def leadership_of(standing: Standing | None, service: str) -> Leadership:
    """What the replica holds now. LeadershipLost: nothing any more."""
    if standing is None:
        raise RuntimeError(f"{service}: used before it was started")
    leadership = standing.leadership
    leadership.check()
    return leadership


class Service(Protocol):
    """Something that a replica runs while it holds a key."""

    @property
    def name(self) -> str:
        """For people."""

    async def start(self, standing: Standing) -> None:
        """Be ready when this returns. What it raises is the replica's problem, and what was started is stopped.

        Cancelled if the replica must stop meanwhile.
        """

    async def run(self) -> None:
        """Work until cancelled. Returning or raising before that is the replica's problem."""

    async def stop(self) -> None:
        """Let go of everything. Called once, after `run` has ended, also when it or `start` failed or was cancelled."""


class ServiceFailed(HostlerError):
    """A service could not start, ended by itself, or did not stop well."""


class Pipeline:
    """Services that run together. Started once, stopped once; what was stopped starts nothing more."""

    def __init__(self, services: Sequence[Service], failed: Callable[[Exception], None]) -> None:
        self._services = tuple(services)
        self._failed = failed
        self._running: list[tuple[Service, asyncio.Task[None]]] = []
        self._starting: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None

    async def start(self, standing: Standing) -> None:
        """Start all, in order. ServiceFailed: one could not; those before it still run and want to be stopped.

        Returns early if it is stopped meanwhile.
        """
        if self._stopping is not None:
            return
        starting = self._starting = asyncio.create_task(self._start(standing), name="services: starting")
        try:
            await asyncio.wait((starting,))
        finally:
            await _cancelled(starting)
        if not starting.cancelled():
            starting.result()
        elif self._stopping is None:
            raise ServiceFailed("services: starting them was cancelled")

    async def stop(self) -> None:
        """Stop all, in reverse, also one that is just starting. Several may ask; all wait for the one stop."""
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
            if self._stopping is not None:  # it did not let itself be cancelled
                await self._let_go(service)
                return
            task = asyncio.create_task(self._run(service), name=f"service {service.name}")
            self._running.append((service, task))

    async def _stop(self) -> None:
        if self._starting is not None:
            await _cancelled(self._starting)
        while self._running:
            service, task = self._running.pop()
            task.cancel()
            await asyncio.wait((task,))
            await self._let_go(service)

    async def _run(self, service: Service) -> None:
        try:
            await service.run()
        except asyncio.CancelledError:
            if self._stopping is None:  # by something inside it, which is no better than an error
                self._failed(ServiceFailed(f"service {service.name}: ended by itself: cancelled"))
        except Exception as error:  # noqa: BLE001 - whatever it was, it is the replica's problem
            self._report(f"service {service.name}: failed: {error}", error)
        else:
            if self._stopping is None:
                self._failed(ServiceFailed(f"service {service.name}: ended by itself"))

    async def _let_go(self, service: Service) -> None:
        stopping = asyncio.create_task(_stopped(service), name=f"service {service.name}: stopping")
        await asyncio.wait((stopping,))  # whatever it raises, the others still have to be stopped
        if stopping.cancelled():
            self._failed(ServiceFailed(f"service {service.name}: did not stop well: cancelled"))
        elif (error := stopping.exception()) is not None:
            self._report(f"service {service.name}: did not stop well: {error}", error)

    def _report(self, message: str, cause: BaseException) -> None:
        failure = ServiceFailed(message)
        failure.__cause__ = cause
        self._failed(failure)


async def _cancelled(task: asyncio.Task[None]) -> None:
    """Until it has ended. It is cancelled once: a second time would interrupt its tidying up."""
    if not task.done():
        if not task.cancelling():
            task.cancel()
        await asyncio.wait((task,))


async def _stopped(service: Service) -> None:
    await service.stop()
