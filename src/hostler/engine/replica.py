"""A replica: one control-plane process that works only while it holds a key.

    launch     take a free key of 1…N, waiting for it if need be; then start the services
    problem    the first thing that went wrong: a lost key, a service that failed, no key to be had
    shutdown   services → monitor → elections, in this order; then the problem, if there was one

The holder of key 1 leads: only it runs the controllers. A holder of a higher key keeps standing for key 1 and, when it
gets it, starts the controllers and gives its old key back.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from hostler.engine.elections import Elections
from hostler.engine.killer import ProcessKiller
from hostler.engine.service import Pipeline
from hostler.errors import Conflict, HostlerError, Invalid, LeadershipLost, Unavailable, Uncertain
from hostler.keys.replica import LEADER
from hostler.kit.backoff import Backoff
from hostler.kit.clock import SystemClock
from hostler.ports.store import check_ttl
from hostler.ports.ttl import Watchable

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from hostler.engine.elections import Leadership
    from hostler.engine.killer import Killer
    from hostler.engine.service import Service
    from hostler.kit.clock import Clock
    from hostler.ports.ttl import TtlStorage

T = TypeVar("T")

LEADERSHIP_TTL = 20.0
ACQUISITION_TIMEOUT = 120.0


class ReplicaConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`num_vvm`: how many replicas hold a key at once. `ip`: the address that others see for this one."""

    ip: str
    num_vvm: int = 1


class Problem:
    """The first thing that went wrong. It is stored before it is signalled, and stays."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self._happened = asyncio.Event()

    async def wait(self) -> None:
        """Until something has gone wrong."""
        await self._happened.wait()

    def update(self, error: Exception) -> None:
        """Report a problem; only the first counts."""
        if self.error is None:
            self.error = error
            self._happened.set()


class Replica:
    """Made once, launched once, shut down once."""

    def __init__(
        self,
        config: ReplicaConfig,
        storage: TtlStorage,
        services: Sequence[Service],
        *,
        controllers: Sequence[Service] = (),
        clock: Clock | None = None,
        killer: Killer | None = None,
        holder: str | None = None,
    ) -> None:
        if config.num_vvm < 1:
            raise Invalid(f"replica: num_vvm is {config.num_vvm}, must be at least 1")
        if not config.ip:
            raise Invalid("replica: ip is empty; give the address that others see for this replica")
        self._config, self._storage = config, storage
        self.holder = holder or uuid.uuid4().hex
        """Tells this replica from every other; it stands in the record of the key it holds."""
        self._clock: Clock = clock or SystemClock()
        self._killer: Killer = killer or ProcessKiller(self._clock)
        self._problem = Problem()
        self._services = Pipeline(services, self._problem.update)
        self._controllers = Pipeline(controllers, self._problem.update)
        self._elections: Elections | None = None
        self._leadership: Leadership | None = None
        self._tasks: list[asyncio.Task[None]] = []  # monitors, and the one that stands for key 1
        self._shutting = asyncio.Event()
        self._launched: asyncio.Event | None = None
        self._shutdown: asyncio.Task[None] | None = None

    @property
    def leadership(self) -> Leadership:
        """The key held now. LeadershipLost: none."""
        if self._leadership is None:
            raise LeadershipLost("replica: it holds no key")
        return self._leadership

    async def launch(
        self, leadership_ttl: float = LEADERSHIP_TTL, acquisition_timeout: float | None = ACQUISITION_TIMEOUT
    ) -> Problem:
        """Take a key, start the services, and return what will tell of problems; it may tell of one already.

        `acquisition_timeout=None` waits for ever. `shutdown` may be called meanwhile.
        """
        ttl = check_ttl(leadership_ttl)
        if acquisition_timeout is not None and not acquisition_timeout >= 0:
            raise Invalid(f"acquisition timeout {acquisition_timeout!r}: must be at least 0 s, or None for ever")
        if self._launched is not None:
            raise RuntimeError("replica: it was launched already; make a new Replica to launch again")
        self._launched = asyncio.Event()
        try:
            await self._launch(ttl, math.inf if acquisition_timeout is None else acquisition_timeout)
        except Exception as error:  # noqa: BLE001 - whatever went wrong is the problem
            self._problem.update(error)
        finally:
            self._launched.set()
        return self._problem

    async def shutdown(self) -> Exception | None:
        """Stop everything, in order; the problem, if there was one. Twice is fine."""
        if self._launched is None:
            raise RuntimeError("replica: it was never launched; call launch() before shutdown()")
        self._shutting.set()
        if self._shutdown is None:
            self._shutdown = asyncio.create_task(self._shut_down(), name="replica: shutdown")
        await asyncio.shield(self._shutdown)
        return self._problem.error

    # Inside

    async def _launch(self, ttl: float, within: float) -> None:
        self._elections = Elections(self._storage, clock=self._clock, new_id=lambda: self.holder)
        keys = range(1, self._config.num_vvm + 1)
        leadership = await self._unless_shut_down(self._stand(keys, ttl, within))
        if leadership is None:
            return
        self._hold(leadership)
        await self._services.start(self)
        if leadership.key == LEADER.fill(n=1):
            await self._controllers.start(self)
        else:
            self._spawn(self._stand_for_the_first(ttl), "replica: standing for key 1")

    def _hold(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self._killer.guard(leadership)
        self._spawn(self._monitor(leadership), f"replica: monitor of {leadership.key}")

    async def _monitor(self, leadership: Leadership) -> None:
        """On loss: stop work first. The killer has been counting since."""
        await leadership.wait_lost()
        if leadership.released:
            return
        self._problem.update(leadership.lost or LeadershipLost(f"leadership {leadership.key}: lost"))
        await self._controllers.stop()
        await self._services.stop()

    async def _stand_for_the_first(self, ttl: float) -> None:
        first = await self._stand(range(1, 2), ttl, math.inf)
        old = self.leadership
        self._hold(first)
        try:
            await self._controllers.start(self)
        except HostlerError as error:
            self._problem.update(error)
        await old.release()

    async def _stand(self, numbers: range, ttl: float, within: float) -> Leadership:
        """Take any of the keys, as soon as one is free. Conflict: none became free in time."""
        assert self._elections is not None  # noqa: S101 - made at launch
        deadline = self._clock.now() + within
        backoff = Backoff(min(0.05, ttl / 100), min(1.0, ttl / 10))
        trouble: HostlerError | None = None
        while True:
            pause = None
            for number in numbers:
                try:
                    leadership = await self._elections.acquire(LEADER.fill(n=number), self._config.ip, ttl=ttl)
                except (Unavailable, Uncertain) as error:
                    trouble, pause = error, backoff.next()
                    continue
                if leadership is not None:
                    return leadership
            left = deadline - self._clock.now()
            if left <= 0:
                if trouble is not None:
                    raise trouble
                raise Conflict(
                    f"replica: all {len(numbers)} keys are held by others after {within:g} s; try again later"
                )
            if pause is None:
                backoff.reset()
                trouble = None
                await self._wait_for_change(numbers, min(left, ttl / 2), ttl)
            else:
                await self._clock.sleep(min(pause, left))

    async def _wait_for_change(self, numbers: range, within: float, ttl: float) -> None:
        """Until one of the keys may be free."""
        if not isinstance(self._storage, Watchable):
            await self._clock.sleep(min(within, ttl / 20))
            return
        waits = [
            asyncio.create_task(self._changed(LEADER.fill(n=number), within), name=f"replica: waiting for key {number}")
            for number in numbers
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _changed(self, key: str, within: float) -> None:
        try:
            seen = await self._storage.get(key)
            if seen is not None and isinstance(self._storage, Watchable):
                await self._storage.wait_change(key, seen, within=within)
        except (Unavailable, Uncertain):
            await self._clock.sleep(min(within, 0.1))

    async def _unless_shut_down(self, step: Coroutine[Any, Any, T]) -> T | None:
        """The step's outcome; None, and the step cancelled, if shutdown was called first."""
        task = asyncio.create_task(step, name="replica: acquisition")
        shutting = asyncio.create_task(self._shutting.wait(), name="replica: shutdown wanted")
        try:
            await asyncio.wait((task, shutting), return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            for each in (task, shutting):
                each.cancel()
            await asyncio.gather(task, shutting, return_exceptions=True)

    async def _shut_down(self) -> None:
        assert self._launched is not None  # noqa: S101 - shutdown() has looked
        await self._launched.wait()
        await self._controllers.stop()
        await self._services.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._elections is not None:
            await self._elections.aclose()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(asyncio.create_task(work, name=name))
