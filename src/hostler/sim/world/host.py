"""A host, which outlives its processes and has a clock of its own rate; a process; and the conditions of a host.

Conditions are the combined effect of the faults that affect a host.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from hostler.engine.runtime.env import Env
from hostler.errors import Unavailable
from hostler.sim.fault import (
    AgentSlow,
    AnswerLost,
    ClockRate,
    Partition,
    ProviderErrors,
    SliceRefuses,
    SlowDisk,
    StoreSlow,
    StoreUnavailable,
    WatchLost,
)
from hostler.sim.faulty_link import Weather
from hostler.sim.world.store_link import StoreLink

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

    from hostler.kit.clock import Clock
    from hostler.sim.fault import Fault
    from hostler.sim.world.world import World


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions of one host. The defaults mean no fault."""

    silent: bool = False
    """The host gets no answers."""
    refused: bool = False
    """The store rejects its requests."""
    slow: float = 0.0
    """Probability that a request is slow, by up to `slowest` seconds."""
    slowest: float = 0.0
    lost: float = 0.0
    """Probability that an answer is lost."""
    lagged: float = 0.0
    """Probability that a watch must be restarted."""
    rate: float = 1.0
    """Rate of the host's clock."""
    late: float = 0.0
    """Seconds by which its reports about machines are late."""
    delay: float = 0.0
    """Additional seconds that machine operations take."""
    errors: float = 0.0
    """Probability that a machine operation fails."""
    refuses: tuple[SliceRefuses, ...] = ()
    """Slices that cannot be loaded or started."""


FINE = Conditions()


def conditions(faults: Iterable[Fault]) -> Conditions:
    """Combine faults into conditions. The worst of a kind counts; clock rates multiply."""
    worst: dict[str, float] = {}
    faults = tuple(faults)
    refuses = tuple(fault for fault in faults if isinstance(fault, SliceRefuses))
    rate, silent, refused = 1.0, False, False
    for fault in faults:
        match fault:
            case Partition():
                silent = True
            case StoreUnavailable():
                refused = True
            case StoreSlow(chance=chance, slowest=slowest):
                _worst(worst, slow=chance, slowest=slowest)
            case AnswerLost(chance=chance):
                _worst(worst, lost=chance)
            case WatchLost(chance=chance):
                _worst(worst, lagged=chance)
            case ClockRate(rate=own):
                rate *= own
            case AgentSlow(delay=delay):
                _worst(worst, late=delay)
            case SlowDisk(delay=delay):
                _worst(worst, delay=delay)
            case ProviderErrors(chance=chance):
                _worst(worst, errors=chance)
            case _:
                pass
    if not (worst or silent or refused or rate != 1.0 or refuses):
        return FINE
    return Conditions(silent=silent, refused=refused, rate=rate, refuses=refuses, **worst)


def _worst(found: dict[str, float], **numbers: float) -> None:
    for name, number in numbers.items():
        found[name] = max(number, found.get(name, 0.0))


T = TypeVar("T")


ROUNDED = 1e-9
"""Seconds added to a sleep when one clock is computed from the other.

A caller that sleeps until a deadline must find, when it wakes, that the deadline has passed. Otherwise it sleeps again,
for less than the resolution of any clock, and never continues.
"""


class RatedClock:
    """A clock with an adjustable rate. A change does not affect sleeps in progress, nor the wall clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rate = 1.0
        # Where the rate changed: an instant of this clock, the same instant of the underlying one, and the rate since.
        self._bends: list[tuple[float, float, float]] = []
        self.now: Callable[[], float] = clock.now
        """As `Clock.now`.

        Called more often than anything else, so it has no indirection while the rate never changed.
        """

    @property
    def rate(self) -> float:
        """Seconds that this clock counts per second of the underlying clock."""
        return self._rate

    @rate.setter
    def rate(self, rate: float) -> None:
        if not rate > 0:
            raise ValueError(f"rate {rate}: must be above 0")
        if rate != self._rate:
            self._bends.append((self.now(), self._clock.now(), rate))
            self._rate, self.now = rate, self._own_time

    def _own_time(self) -> float:
        own, since, rate = self._bends[-1]
        return own + (self._clock.now() - since) * rate

    def wall(self) -> float:
        return self._clock.wall()

    def sleep(self, seconds: float) -> Coroutine[Any, Any, None]:
        if not self._bends or seconds <= 0:
            return self._clock.sleep(seconds)
        return self._clock.sleep(seconds / self._rate + ROUNDED)

    def underneath(self, at: float) -> float:
        """Convert an instant of this clock to the underlying clock."""
        number = bisect_right(self._bends, at, key=lambda bend: bend[0])
        if number == 0:
            return at
        own, since, rate = self._bends[number - 1]
        return since + (at - own) / rate


def chance(seed: int, what: str) -> random.Random:
    """Return an independent random source for one purpose, so that its draws do not affect others."""
    return random.Random(f"{seed} {what}")  # noqa: S311 - reproducible runs, no security


class Life:
    """One operating-system process of a host: it ends by itself or is killed."""

    def __init__(self, host: Host, number: int, main: Callable[[Life], Coroutine[Any, Any, None]]) -> None:
        world = host.world
        self.host, self.clock = host, host.clock
        self.process = f"{host.name}#{number}"
        self.rng = chance(world.seed, self.process)
        self.wire = StoreLink(world.store, self.rng, host.weather, latency=world.plan.latency)
        self.dead = False
        self._main = main
        self.task = world.loop.launch(self.process, self._run())

    async def _run(self) -> None:
        error: Exception | None = None
        try:
            await self._main(self)
        except asyncio.CancelledError:
            raise
        except Exception as raised:  # noqa: BLE001 - reported to the world
            error = raised
        if not self.dead:
            self.host.ended(self, error)

    def kill(self) -> None:
        """SIGKILL."""
        self.dead = self.wire.dead = True
        self.host.world.loop.kill(self.process)

    def new_id(self) -> str:
        """Return a unique id."""
        return f"{self.rng.getrandbits(64):016x}"

    def env(self, tell: Callable[[str], None]) -> Env:
        """Return the environment of the process."""
        return Env(self.clock, self.rng, self.new_id, self.new_id, tell=tell, warn=tell)

    async def call(self, work: Callable[[], Awaitable[T]], *, within: float | None = None) -> T:
        """Run something in the process for a caller outside. Unavailable: the process died or did not answer."""
        if self.dead:
            raise Unavailable(f"{self.host.name}: not running")
        asked = self.host.world.loop.launch(self.process, _answer_of(work))  # type: ignore[arg-type]
        try:
            await asyncio.wait((asked,), timeout=within)
        finally:
            if not asked.done():
                asked.cancel()
        if not asked.done():
            raise Unavailable(f"{self.host.name}: no answer within {within:g} s")
        if asked.cancelled():
            raise Unavailable(f"{self.host.name}: the connection was lost")
        answer: _Answer = asked.result()  # type: ignore[assignment]
        if answer.error is not None:
            raise answer.error
        result: T = answer.result
        return result


class _Answer(NamedTuple):
    """A result or an error as a value: the caller may be gone, and then no code would retrieve the task's exception."""

    result: Any = None
    error: Exception | None = None


async def _answer_of(work: Callable[[], Awaitable[Any]]) -> _Answer:
    try:
        return _Answer(await work())
    except Exception as error:  # noqa: BLE001 - raised in the caller
        return _Answer(error=error)


class Host:
    """The host of a process. `name`: `replica-1`, or the node."""

    kind = ""
    """`replica` or `blade`."""

    def __init__(self, world: World, name: str, component: str) -> None:
        self.world, self.name, self.component = world, name, component
        self.clock = RatedClock(world.clock)
        self.weather = Weather()
        self.life: Life | None = None
        self.lives = 0
        self.paused = False
        self.held: dict[str, None] = {}
        """Ids of faults that prevent a start."""
        self.conditions: Conditions = FINE
        self.trouble = ""
        """The fault id or component that last ended or cut off its process."""

    @property
    def alive(self) -> bool:
        """Whether its process runs, or is paused."""
        return self.life is not None and not self.life.dead

    def start(self, cause: str = "") -> None:
        """Start its process unless it is running or prevented."""
        if self.alive or self.held or not self.may_run():
            return
        self.lives += 1
        self.trouble = ""
        self.world.log.add("started", self.component, f"process {self.lives}", cause)
        before, life = self.life, Life(self, self.lives, self.main)
        if before is not None:
            life.wire.follow(before.wire)
        self.life = life
        self.wire_up(life.wire)

    def kill(self, cause: str = "") -> None:
        """SIGKILL, without a restart."""
        life = self.life
        if life is None or life.dead:
            return
        self.trouble = cause
        self.world.log.add("killed", self.component, f"process {self.lives}", cause)
        self.paused = False
        life.kill()

    def pause(self, cause: str = "") -> None:
        """SIGSTOP."""
        if self.alive and self.life is not None and not self.paused:
            self.paused = True
            self.world.log.add("paused", self.component, f"process {self.lives}", cause)
            self.world.loop.suspend(self.life.process)

    def wake(self, cause: str = "") -> None:
        """SIGCONT."""
        if self.paused and self.life is not None:
            self.paused = False
            self.world.log.add("woken", self.component, f"process {self.lives}", cause)
            self.world.loop.wake(self.life.process)

    def meet(self, conditions: Conditions) -> None:
        """Apply conditions from now on, also to later processes."""
        if conditions == self.conditions:
            return
        self.conditions = conditions
        self.clock.rate = conditions.rate
        weather = self.weather
        weather.slow, weather.lost, weather.lagged = conditions.slow, conditions.lost, conditions.lagged
        weather.slowest = conditions.slowest or Weather.slowest
        if self.alive and self.life is not None:
            self.wire_up(self.life.wire)

    def wire_up(self, wire: StoreLink) -> None:
        """Configure the connection to the store from the conditions."""
        wire.late, wire.silent = self.conditions.late, self.silent
        if self.silent or self.conditions.refused:
            wire.cut()
        else:
            wire.heal()

    @property
    def silent(self) -> bool:
        """Whether the host gets no answers."""
        return self.conditions.silent

    def ended(self, life: Life, error: Exception | None) -> None:
        """Handle a process that ended by itself, with everything it had started."""
        life.kill()
        self.world.process_ended(self, error)

    # Hooks of the kinds of hosts

    def may_run(self) -> bool:
        """Return whether the hardware can run a process."""
        return True

    async def main(self, life: Life) -> None:
        raise NotImplementedError

    def crash_slices(self, artifact: str) -> None:
        """Crash the slices on this host, if any are running."""
