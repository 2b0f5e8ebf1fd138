"""A replica: one control-plane process that works only while it holds a key.

    launch     take a free key of 1…N, waiting for it if necessary; then start the services
    problem    the first failure: a lost key, a failed service, no free key
    shutdown   services → monitor → elections, in this order; then return the problem, if any

The holder of key 1 leads: only it runs the controllers. A holder of a higher key keeps trying to acquire key 1. When it
succeeds, it starts the controllers and releases its old key.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.engine.elections import PATIENCE, Elections
from hostler.engine.self_fencing import ProcessKiller
from hostler.engine.service import Pipeline
from hostler.errors import Conflict, HostlerError, Invalid, LeadershipLost, Unavailable, Uncertain
from hostler.keys.families import LEADER
from hostler.kit.clock import SystemClock
from hostler.kit.rate_limit import Backoff
from hostler.ports.store import check_ttl
from hostler.ports.ttl import Watchable

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from hostler.engine.elections import Leadership
    from hostler.engine.self_fencing import Killer
    from hostler.engine.service import Service
    from hostler.kit.clock import Clock
    from hostler.ports.ttl import TtlStorage

LEADERSHIP_TTL = 20.0
ACQUISITION_TIMEOUT = 120.0
POLL = 0.5
"""Longest time between two reads of a key, in seconds, if the storage cannot watch."""


class ReplicaConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`num_vvm`: number of replicas that hold a key at once. `ip`: the address of this replica for others."""

    ip: str
    num_vvm: int = 1


_LATER = "try again later, or wait without a limit (hostler replica --wait)"


class Problem:
    """The first failure. It is stored before waiters are notified, and never replaced."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self._happened = asyncio.Event()

    async def wait(self) -> None:
        """Wait until a failure is reported."""
        await self._happened.wait()

    def update(self, error: Exception) -> None:
        """Report a failure; only the first is kept."""
        if self.error is None:
            self.error = error
            self._happened.set()


class Replica:
    """Made once, launched once, shut down once. The caller opens the storage, and closes it after shutdown."""

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
        rng: random.Random | None = None,
        least_fence: Callable[[], int] = lambda: 0,
    ) -> None:
        """`least_fence`: the replica leads only with a fence above this one."""
        _check(config)
        self._config, self._storage = config, storage
        self.holder = holder or uuid.uuid4().hex
        """Distinguishes this replica from all others; part of the record of the key it holds."""
        self._clock: Clock = clock or SystemClock()
        self._killer: Killer = killer or ProcessKiller(self._clock)
        self._elections = Elections(
            storage, clock=self._clock, new_id=lambda: self.holder, rng=rng, least_fence=least_fence
        )
        self._problem = Problem()
        self._services = Pipeline(services, self._trouble)
        self._controllers = Pipeline(controllers, self._trouble)
        self._leadership: Leadership | None = None
        self._monitors: list[asyncio.Task[None]] = []
        self._standing: asyncio.Task[None] | None = None  # tries to acquire key 1, while a higher key is held
        self._promotion: asyncio.Task[None] | None = None  # to key 1, after it was acquired
        self._shutting = asyncio.Event()
        self._launched: asyncio.Event | None = None
        self._shutdown: asyncio.Task[None] | None = None

    @property
    def leadership(self) -> Leadership:
        """Return the key held now. LeadershipLost: none."""
        if self._leadership is None:
            raise LeadershipLost("replica: holds no key")
        return self._leadership

    async def launch(
        self, leadership_ttl: float = LEADERSHIP_TTL, acquisition_timeout: float | None = ACQUISITION_TIMEOUT
    ) -> Problem:
        """Take a key, start the services, and return the object that reports failures; it may already have one.

        `acquisition_timeout=None` waits without limit. `shutdown` may be called concurrently. If this call is
        cancelled, everything is shut down first.
        """
        ttl = check_ttl(leadership_ttl)
        within = _check_timeout(acquisition_timeout)
        if self._launched is not None:
            raise RuntimeError("replica: already launched; create a new Replica to launch again")
        self._launched = asyncio.Event()
        try:
            await self._launch(ttl, within)
        except asyncio.CancelledError:
            self._launched.set()
            await self.shutdown()
            raise
        except Exception as error:  # noqa: BLE001 - any error becomes the problem
            self._trouble(error)
        finally:
            self._launched.set()
        return self._problem

    async def shutdown(self) -> Exception | None:
        """Stop everything in order and return the problem, if any. May be called twice."""
        if self._launched is None:
            raise RuntimeError("replica: never launched; call launch() before shutdown()")
        self._shutting.set()
        if self._shutdown is None:
            self._shutdown = asyncio.create_task(self._shut_down(self._launched), name="replica: shutdown")
        await asyncio.shield(self._shutdown)
        return self._problem.error

    # Internal

    def _trouble(self, error: Exception) -> None:
        """Report a problem. A replica with a problem must not take another key."""
        self._problem.update(error)
        if self._standing is not None:
            self._standing.cancel()

    async def _launch(self, ttl: float, within: float) -> None:
        keys = range(1, self._config.num_vvm + 1)
        leadership = await self._acquire(keys, ttl, within)
        if leadership is None:
            return
        self._hold(leadership)
        await self._services.start(self)
        if leadership.key == LEADER.fill(n=1):
            await self._controllers.start(self)
        elif self._problem.error is None and not self._shutting.is_set():
            standing = self._stand_for_the_first(leadership, ttl)
            self._standing = asyncio.create_task(standing, name="replica: acquisition of key 1")

    def _hold(self, leadership: Leadership) -> None:
        self._leadership = leadership
        self._killer.guard(leadership)
        monitor = asyncio.create_task(self._monitor(leadership), name=f"replica: monitor of {leadership.key}")
        self._monitors.append(monitor)

    async def _monitor(self, leadership: Leadership) -> None:
        """On loss, stop the work first. The killer's grace period runs from the loss."""
        await leadership.wait_lost()
        if leadership.released:
            return
        self._trouble(leadership.lost or LeadershipLost(f"leadership {leadership.key}: lost"))
        await self._controllers.stop()
        await self._services.stop()

    async def _stand_for_the_first(self, old: Leadership, ttl: float) -> None:
        try:
            first = await self._stand(range(1, 2), ttl, _Trouble())
        except Exception as error:  # noqa: BLE001 - any error ends the acquisition and must be reported
            self._trouble(error)
            return
        self._hold(first)
        self._promotion = asyncio.create_task(self._promote(old), name="replica: promotion")

    async def _promote(self, old: Leadership) -> None:
        """Run the controllers under key 1, and release the old key."""
        releasing = asyncio.create_task(old.release(), name="replica: release of the old key")
        try:
            await self._controllers.start(self)
        except Exception as error:  # noqa: BLE001 - any error becomes the problem
            self._trouble(error)
        await releasing

    async def _acquire(self, numbers: range, ttl: float, within: float) -> Leadership | None:
        """Acquire any of the keys; None: shutdown was called first. Conflict, or the storage's error: none in time."""
        trouble = _Trouble()
        standing = asyncio.create_task(self._stand(numbers, ttl, trouble, within), name="replica: acquisition")
        # A storage that hangs must not extend the wait. The first attempt gets its time even if `within` is 0.
        ends: list[asyncio.Task[Any]] = [
            asyncio.create_task(self._shutting.wait(), name="replica: shutdown requested"),
        ]
        if within < math.inf:
            alarm = self._clock.sleep(within + PATIENCE)
            ends.append(asyncio.create_task(alarm, name="replica: acquisition timeout"))
        try:
            await asyncio.wait((standing, *ends), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (standing, *ends):
                task.cancel()
            await asyncio.gather(standing, *ends, return_exceptions=True)
        if not standing.cancelled():
            return standing.result()
        if self._shutting.is_set():
            return None
        raise trouble.error or Unavailable(f"replica: the storage gave no answer within {within:g} s; try again later")

    async def _stand(self, numbers: range, ttl: float, trouble: _Trouble, within: float = math.inf) -> Leadership:
        """Take any of the keys as soon as one is free. Conflict: none became free in time."""
        deadline = self._clock.now() + within
        backoff = Backoff(min(0.05, ttl / 100), min(1.0, ttl / 10), rng=self._elections.rng)
        while True:
            trouble.error = None
            for number in numbers:
                try:
                    leadership = await self._elections.acquire(LEADER.fill(n=number), self._config.ip, ttl=ttl)
                except (Unavailable, Uncertain) as error:
                    trouble.error = error
                    continue
                if leadership is not None:
                    return leadership
            left = deadline - self._clock.now()
            if left <= 0:
                every = "its key is" if len(numbers) == 1 else f"all {len(numbers)} keys are"
                raise trouble.error or Conflict(f"replica: {every} held by others after {within:g} s; {_LATER}")
            if trouble.error is None:
                backoff.reset()
                await self._wait_for_change(numbers, min(left, ttl / 2), ttl)
            else:
                await self._clock.sleep(min(backoff.next(), left))

    async def _wait_for_change(self, numbers: range, within: float, ttl: float) -> None:
        """Wait until one of the keys may be free."""
        if not isinstance(self._storage, Watchable):
            await self._clock.sleep(min(within, ttl / 20, POLL))
            return
        waits = [
            asyncio.create_task(self._changed(LEADER.fill(n=number), within), name=f"replica: waiting for key {number}")
            for number in numbers
        ]
        try:
            # The timeout is for a storage that hangs; other storages observe `within` themselves.
            done, _ = await asyncio.wait(waits, timeout=within + PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        for wait in waits:
            if wait in done:
                wait.result()

    async def _changed(self, key: str, within: float) -> None:
        try:
            seen = await self._storage.get(key)
            if seen is not None and isinstance(self._storage, Watchable):
                await self._storage.wait_change(key, seen, within=within)
        except (Unavailable, Uncertain):
            await self._clock.sleep(min(within, 0.1))

    async def _shut_down(self, launched: asyncio.Event) -> None:
        # First, because a service that is starting would keep the launch from ending.
        await self._controllers.stop()
        await self._services.stop()
        await launched.wait()
        if self._standing is not None:
            self._standing.cancel()
            await asyncio.gather(self._standing, return_exceptions=True)
        if self._promotion is not None:  # its controllers are stopped, so it ends
            await self._promotion
        for monitor in self._monitors:
            monitor.cancel()
        await asyncio.gather(*self._monitors, return_exceptions=True)
        await self._elections.aclose()


class _Trouble:
    """The last error of the storage during the acquisition of keys."""

    def __init__(self) -> None:
        self.error: HostlerError | None = None


def _check(config: ReplicaConfig) -> None:
    number = config.num_vvm
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise Invalid(f"replica: num_vvm is {number!r}, must be a whole number, at least 1")
    if not isinstance(config.ip, str) or not config.ip:
        raise Invalid(f"replica: ip is {config.ip!r}; give the address that others see for this replica, as text")


def _check_timeout(within: float | None) -> float:
    if within is None:
        return math.inf
    if isinstance(within, bool) or not isinstance(within, int | float) or not within >= 0:
        raise Invalid(f"acquisition timeout {within!r}: must be at least 0 s, or None to wait without limit")
    return float(within)
