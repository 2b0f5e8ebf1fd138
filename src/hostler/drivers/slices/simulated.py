"""Simulated slices: rows that behave like processes, for tests and simulations.

    place = SlicePlace("blade-1")                     # what runs; outlives the driver, as processes outlive an agent
    slices = SimulatedSlices(place, clock=clock, rng=rng)
    place.crash("org:hello:1#3")                      # its process ends by itself
    place.refuse("org:hello:2", "activate")           # its `start` raises, from now on
    place.slow("org:hello:2", 90)                     # each of its verbs takes 90 s longer

Not here: threads, sockets, or time other than the clock's, so that all of it runs in virtual time.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from hostler.errors import HostlerError, NotFound, Refused, Unavailable
from hostler.kit.clock import SystemClock
from hostler.kit.lazy_import import old_method
from hostler.kit.tasks import Closing
from hostler.ports.slices import MOST_PRINTED, Life, Method, Printed, Run, Running

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from hostler.kit.clock import Clock

Verb: TypeAlias = Literal["load", "activate", "deactivate", "unload"]
METHODS = (Method(name="call", idempotent=True),)
_replace = msgspec.structs.replace


class SliceTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that each verb takes, ± 20 %."""

    load: float = 0.5
    activate: float = 0.2
    deactivate: float = 0.1
    unload: float = 0.1


class SliceHost:
    """The instances of one node, and the faults injected there."""

    def __init__(
        self,
        name: str = "simulated",
        *,
        methods: Mapping[str, tuple[Method, ...]] | None = None,
        artifacts: Collection[str] | None = None,
    ) -> None:
        """`methods`: the methods of an artifact, if not one method `call`. `artifacts`: all that exist."""
        self.id = name
        self.rows: dict[str, Running] = {}
        """By the id of the run."""
        self.methods = dict(methods or {})
        self.artifacts = None if artifacts is None else frozenset(artifacts)
        self.version = 0
        """Grows with every change."""
        self.admitted: frozenset[str] = frozenset()
        self.calls: list[tuple[str, str]] = []
        """Every verb that was started: its name, and the id of the run."""
        self.logs: dict[str, bytes] = {}
        """The output of each instance, by the id of the run, in the order in which they last printed."""
        self._faults: dict[tuple[str, str], tuple[HostlerError, int | None]] = {}
        self._slow: dict[str, float] = {}
        self._changed: list[Callable[[str], None]] = []
        self._down = False
        self._ports = 20_000

    # Spontaneous changes

    def crash(self, name: str, detail: str = "its process ended") -> None:
        """End an instance; nothing happens if it does not run."""
        running = self.rows.get(name)
        if running is None or running.life is Life.ENDED:
            return
        self.put(_replace(running, life=Life.ENDED, address="", detail=detail, in_flight=0))
        for changed in tuple(self._changed):
            changed(name)

    def sicken(self, name: str) -> None:
        """Make an instance report itself unhealthy."""
        self.crash(name, "it reported itself unhealthy")

    def print(self, name: str, text: bytes) -> None:
        """Make an instance print."""
        self.logs[name] = self.logs.pop(name, b"") + text

    def reboot(self) -> None:
        """Restart the whole host: nothing runs any more."""
        self.rows.clear()
        self.version += 1

    # Fault injection

    def refuse(self, artifact: str, verb: Verb = "load", why: str = "", *, times: int | None = None) -> None:
        """Refuse a verb, `times` times or until `relent`."""
        self.fault(artifact, verb, Refused(f"{artifact}: {why or f'{verb} failed: simulated'}"), times=times)

    def fault(self, artifact: str, verb: Verb, error: HostlerError, *, times: int | None = None) -> None:
        """Make a verb raise this error."""
        self._faults[artifact, verb] = error, times

    def slow(self, artifact: str, by: float) -> None:
        """Make every verb of an artifact take so many seconds longer."""
        self._slow[artifact] = by

    def relent(self, artifact: str) -> None:
        """Remove all faults of an artifact."""
        self._slow.pop(artifact, None)
        for key in [key for key in self._faults if key[0] == artifact]:
            del self._faults[key]

    def down(self) -> None:
        """Make the driver unavailable; instances keep running."""
        self._down = True

    def up(self) -> None:
        self._down = False

    # For the driver

    def put(self, running: Running) -> Running:
        """Set the state of an instance."""
        self.rows[running.run.id] = running
        self.version += 1
        return running

    def drop(self, name: str) -> None:
        if self.rows.pop(name, None) is not None:
            self.version += 1

    def raise_fault(self, artifact: str, verb: Verb) -> None:
        """Raise the fault that is due for this verb."""
        self.check()
        error, times = self._faults.get((artifact, verb), (None, None))
        if error is None:
            return
        if times is not None and times <= 1:
            del self._faults[artifact, verb]
        elif times is not None:
            self._faults[artifact, verb] = error, times - 1
        raise error

    if not TYPE_CHECKING:  # the checker accepts the new name only
        met = old_method("met", "raise_fault")

    def check(self) -> None:
        if self._down:
            raise Unavailable(f"slices at {self.id}: out of reach; try later")

    def slowness(self, artifact: str) -> float:
        return self._slow.get(artifact, 0.0)

    def address(self) -> str:
        """Return an address that was never used before."""
        self._ports += 1
        return f"{self.id}:{self._ports}"

    def listen(self, changed: Callable[[str], None]) -> None:
        self._changed.append(changed)

    def deafen(self, changed: Callable[[str], None]) -> None:
        self._changed = [other for other in self._changed if other is not changed]


class SimulatedSlices(Closing):
    """The driver. Verbs of one instance run one after the other; an interrupted verb has done nothing."""

    def __init__(
        self,
        place: SliceHost,
        *,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        times: SliceTimes | None = None,
    ) -> None:
        self.place, self._clock = place, clock or SystemClock()
        self._rng = rng or random.Random()  # noqa: S311 - jitter, not security
        self._times = times or SliceTimes()
        self._locks: dict[str, asyncio.Lock] = {}
        self._listed: tuple[int, Sequence[Running]] = (-1, ())
        self._listening: list[Callable[[str], None]] = []

    async def aclose(self) -> None:
        """Close the driver; instances keep running."""
        for changed in self._listening:
            self.place.deafen(changed)
        self._listening = []

    # The verbs

    async def load(self, run: Run) -> Running:
        async with self._lock(run):
            return await self._load(run)

    async def activate(self, run: Run) -> Running:
        async with self._lock(run):
            running = await self._load(run)
            if running.life is Life.ACTIVE:
                return running
            await self._step("activate", run)
            running = self.place.rows.get(run.id, running)
            if running.life is Life.ENDED:
                raise Refused(f"{run.id}: ended while it was started: {running.detail}")
            return self.place.put(_replace(running, life=Life.ACTIVE, address=self.place.address(), detail=""))

    async def deactivate(self, run: Run, *, grace: float) -> Running:
        async with self._lock(run):
            running = self._row(run)
            if running.life is not Life.ACTIVE:
                return running
            running = self.place.put(_replace(running, address=""))
            await self._step("deactivate", run, most=grace)
            running = self._row(run)
            if running.life is Life.ENDED:
                return running
            return self.place.put(_replace(running, life=Life.LOADED, in_flight=0))

    async def unload(self, run: Run) -> None:
        async with self._lock(run):
            self.place.check()
            if run.id in self.place.rows:
                await self._step("unload", run)
                self.place.drop(run.id)

    async def list(self) -> Sequence[Running]:
        self.place.check()
        if self._listed[0] != self.place.version:
            self._listed = self.place.version, tuple(self.place.rows.values())
        return self._listed[1]

    async def printed(self, artifact: str, instance: int = 0, *, after: str = "") -> Printed:
        self.place.check()
        named = [name for name in (*self.place.rows, *self.place.logs) if name.rpartition("#")[0] == artifact]
        name = f"{artifact}#{instance}" if instance else named[-1] if named else ""
        if name not in self.place.logs and name not in self.place.rows:
            raise NotFound(f"{name or artifact}: no output is kept there")
        text = self.place.logs.get(name, b"")
        start = int(after) if after.isdecimal() and int(after) <= len(text) else 0
        begin = max(start, len(text) - MOST_PRINTED)
        number = int(name.rpartition("#")[2])
        return Printed(instance=number, text=text[begin:], after=str(len(text)), skipped=begin - start)

    def listen(self, changed: Callable[[str], None]) -> None:
        self._listening.append(changed)
        self.place.listen(changed)

    def admit(self, tokens: frozenset[str]) -> None:
        self.place.admitted = tokens

    # Internal

    async def _load(self, run: Run) -> Running:
        running = self.place.rows.get(run.id)
        if running is not None and running.life is not Life.ENDED and running.run == run:
            self.place.check()
            return running
        if self.place.artifacts is not None and run.artifact not in self.place.artifacts:
            raise NotFound(f"artifact {run.artifact}: not in the repository; push it: hostler slice push")
        await self._step("load", run)
        methods = self.place.methods.get(run.artifact, METHODS)
        return self.place.put(Running(run=run, life=Life.LOADED, methods=methods))

    async def _step(self, verb: Verb, run: Run, *, most: float | None = None) -> None:
        self.place.calls.append((verb, run.id))
        self.place.check()
        seconds = getattr(self._times, verb) * self._rng.uniform(0.8, 1.2) + self.place.slowness(run.artifact)
        await self._clock.sleep(seconds if most is None else min(most, seconds))
        self.place.raise_fault(run.artifact, verb)

    def _row(self, run: Run) -> Running:
        self.place.check()
        running = self.place.rows.get(run.id)
        if running is None:
            raise NotFound(f"{run.id}: not on this node; load it first")
        return running

    def _lock(self, run: Run) -> asyncio.Lock:
        return self._locks.setdefault(run.id, asyncio.Lock())
