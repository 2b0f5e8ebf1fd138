"""Processes that stand for election in a world of faults, and what must be true of it.

Stated bounds. On one clock, two leaderships of a key are never both `held` at one instant, whatever the network and the
storage do and however long a process sleeps; the one exception is an operator who removes or replaces the record under
a leader, which goes on believing for less than one ttl after that. What a leader writes under its guard is written by
the holder of the newest fence, always.
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hostler.drivers.store.memory import MemoryStore
from hostler.drivers.ttl.store import StoreTtlStorage
from hostler.engine.elections import Elections
from hostler.errors import Unavailable, Uncertain
from hostler.keys.families import FENCE, LEADER
from hostler.kit.virtual_loop import ProcessLoop, VirtualClock, outside, run_virtual
from hostler.ports.store import ModRevision, Put
from hostler.sim.faulty_link import FaultyLink, Weather

from .evidence import name_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.engine.elections import Leadership
    from hostler.ports.store import Comparison
    from hostler.ports.ttl import TtlStorage

TTL = 8.0
SPAN = 90.0
"""Seconds of faults in one schedule."""
COUNT = "/count/"
TROUBLE = (Unavailable, Uncertain)


class Wrong(AssertionError):
    """Something that must never be."""


@dataclass
class Rules:
    """What the processes are made of; a mutant replaces a part."""

    elections: Callable[..., Elections] = Elections
    storage: Callable[[Any], TtlStorage] = StoreTtlStorage
    guards: Callable[[Leadership], list[Comparison]] = lambda leadership: [leadership.guard()]


@dataclass
class Tally:
    """What happened in a schedule, to see that schedules are not idle."""

    leaderships: int = 0
    lost: int = 0
    writes: int = 0
    refused: int = 0
    edits: int = 0
    stops: int = 0
    kills: int = 0
    overlaps: int = 0
    actions: dict[str, int] = field(default_factory=dict)


@dataclass
class Term:
    """A leadership as the world saw it begin."""

    process: Process
    leadership: Leadership
    sent_at: float
    """No later than its record was written."""


class Process:
    """One operating-system process: a wire, and whatever runs on it. Subclasses say what."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.rng = random.Random(f"{world.seed} {name}")
        self.wire = FaultyLink(world.store, self.rng, world.weather)
        self.storage = world.rules.storage(self.wire)
        self.leaving = asyncio.Event()
        self.dead = False
        self.task = world.loop.launch(name, self._main())

    async def _main(self) -> None:
        try:
            await self.main()
        except Exception as error:  # noqa: BLE001 - the world raises it
            self.world.failure = self.world.failure or error

    async def main(self) -> None:
        raise NotImplementedError

    async def write(self, leadership: Leadership) -> None:
        """Count, under the fence: what a controller does."""
        key = COUNT + LEADER.parse(leadership.key)["n"]
        try:
            async with asyncio.timeout(TTL * 2):
                kv = await self.wire.get(key)
                count = int(kv.value.split()[0]) if kv else 0
                if not leadership.held:
                    return
                when = [*self.world.rules.guards(leadership), ModRevision(key) == (kv.mod_revision if kv else 0)]
                line = f"{count + 1} {leadership.fence} {self.name}".encode()
                result = await self.wire.txn(when, [Put(key, line)])
        except (*TROUBLE, TimeoutError):
            return
        if result.succeeded:
            self.world.tally.writes += 1
        else:
            self.world.tally.refused += 1


class Elector(Process):
    """Stands, leads for a while, releases, stands again."""

    async def main(self) -> None:
        world = self.world
        elections = world.rules.elections(self.storage, clock=world.clock, new_id=lambda: self.name, rng=self.rng)
        try:
            while not self.leaving.is_set():
                try:
                    leadership = await elections.acquire(LEADER.fill(n=1), self.name, ttl=TTL)
                except TROUBLE:
                    leadership = None
                if leadership is None:
                    await asyncio.sleep(self.rng.uniform(0.05, 1.0))
                else:
                    world.began(self, leadership)
                    await self.lead(leadership)
        finally:
            await elections.aclose()

    async def lead(self, leadership: Leadership) -> None:
        until = self.world.clock.now() + self.rng.choice((1, 4, 15, 40))
        while leadership.held and not self.leaving.is_set() and self.world.clock.now() < until:
            await self.write(leadership)
            await asyncio.sleep(self.rng.uniform(0.05, 1.5))
        if leadership.lost is not None:
            self.world.tally.lost += 1
        elif self.rng.random() < 0.2:
            await _interrupted(leadership.release(), self.rng.random() * 0.1)
        else:
            await leadership.release()


async def _interrupted(work: Any, after: float) -> None:
    task = asyncio.create_task(work)
    await asyncio.sleep(after)
    task.cancel()
    await asyncio.wait((task,))


class World:
    """A storage, processes, an operator and a director that makes trouble; all of it drawn from one seed."""

    def __init__(self, seed: int, make: type[Process], rules: Rules, *, keys: int = 1) -> None:
        self.seed, self.make, self.rules, self.keys = seed, make, rules, keys
        self.rng = random.Random(seed)
        self.loop = ProcessLoop(seed)
        self.clock = VirtualClock()
        self.weather = Weather()
        self.tally = Tally()
        self.store: MemoryStore
        self.processes: list[Process] = []
        self.terms: list[Term] = []
        self.edits: list[tuple[str, float]] = []
        self.failure: Exception | None = None
        self.over = False
        self.names = 0
        self.healing: set[asyncio.Task[None]] = set()

    # What is watched while it runs

    def began(self, process: Process, leadership: Leadership) -> None:
        """A process got a leadership."""
        self.tally.leaderships += 1
        for term in self.terms:
            if term.leadership.key == leadership.key and term.leadership.fence == leadership.fence:
                raise Wrong(f"fence {leadership.fence} was given to {term.process.name} and to {process.name}")
        self.terms.append(Term(process, leadership, leadership.deadline - TTL))
        self.look()

    def look(self) -> None:
        """Never two at once, but for an operator's edit."""
        if self.failure is not None:
            raise self.failure
        now = self.clock.now()
        standing = [term for term in self.terms if not term.process.dead and term.leadership.held]
        for number, first in enumerate(standing):
            for second in standing[number + 1 :]:
                if first.leadership.key != second.leadership.key:
                    continue
                if not (self._edited(first, now) or self._edited(second, now)):
                    raise Wrong(f"at {now:g} s both {first.leadership} and {second.leadership} are held")
                self.tally.overlaps += 1

    def _edited(self, term: Term, now: float) -> bool:
        after = [at for key, at in self.edits if key == term.leadership.key and at >= term.sent_at]
        return bool(after) and now < after[0] + TTL

    # Running it

    async def run(self) -> Tally:
        async with MemoryStore(clock=self.clock, rng=self.rng) as store:
            self.store = store
            await store.grant(1e8)  # the storage's own task must belong to nobody
            for _ in range(self.rng.choice((2, 2, 3, 4))):
                self.spawn()
            await self.disturb(self.clock.now() + SPAN)
            await self.calm()
            await self.lead_again()
            await self.leave()
            await self.check_left()
            check_history(store, self.keys)
        return self.tally

    def spawn(self) -> None:
        if self.over:
            return
        self.names += 1
        self.processes.append(self.make(self, f"p{self.names}"))

    def alive(self) -> list[Process]:
        return [process for process in self.processes if not process.dead and not process.task.done()]

    async def disturb(self, until: float) -> None:
        """The director. Which kinds of trouble there are, and how often, differs from seed to seed."""
        actions: list[Callable[[], None]] = [
            self.stop_one,
            self.kill_one,
            self.cut_one,
            self.cut_all,
            self.turn_weather,
        ]
        if self.rng.random() < 0.3:
            actions.append(self.edit)
        actions.append(self.leave_one)
        chosen = self.rng.sample(actions, self.rng.randint(1, len(actions)))
        pace = self.rng.choice((1.0, 3.0, 8.0))
        while self.clock.now() < until:
            await asyncio.sleep(self.rng.uniform(0.2, 2.0) * pace)
            while len(self.alive()) < 2:
                self.spawn()
            action = self.rng.choice(chosen)
            self.tally.actions[action.__name__] = self.tally.actions.get(action.__name__, 0) + 1
            action()
            self.look()

    def stop_one(self) -> None:
        """SIGSTOP, and SIGCONT after a while, often longer than the ttl."""
        process = self.rng.choice(self.alive())
        self.tally.stops += 1
        self.loop.suspend(process.name)
        self.after(
            self.rng.choice((0.5, 1.0, 2.0)) * TTL * self.rng.random() * 1.5, lambda: self.loop.wake(process.name)
        )

    def kill_one(self) -> None:
        self.kill(self.rng.choice(self.alive()))

    def kill(self, process: Process) -> None:
        """SIGKILL."""
        self.tally.kills += 1
        process.dead = process.wire.dead = True
        self.loop.kill(process.name)
        self.after(self.rng.uniform(0.1, TTL), self.spawn)

    def cut_one(self) -> None:
        wire = self.rng.choice(self.alive()).wire
        wire.cut()
        self.after(self.rng.uniform(0.1, 2 * TTL), wire.heal)

    def cut_all(self) -> None:
        wires = [process.wire for process in self.alive()]
        for wire in wires:
            wire.cut()
        span = self.rng.uniform(0.1, 1.5 * TTL)
        for wire in wires:
            self.after(span, wire.heal)

    def turn_weather(self) -> None:
        for name in ("unavailable", "lost", "never", "slow", "hang", "deaf", "lagged"):
            worst = 0.05 if name == "deaf" else 0.25
            setattr(self.weather, name, self.rng.choice((0.0, 0.0, self.rng.random() * worst)))
        self.weather.slowest = self.rng.choice((0.25, 1.0, 2.0)) * TTL

    def leave_one(self) -> None:
        """SIGTERM."""
        process = self.rng.choice(self.alive())
        process.leaving.set()
        self.after(self.rng.uniform(0.1, TTL), self.spawn)

    def edit(self) -> None:
        """An operator removes or replaces a record, knowing what stands there."""
        self.tally.edits += 1
        key = LEADER.fill(n=self.rng.randint(1, self.keys))
        self.go(self._edit(key, delete=self.rng.random() < 0.5))

    async def _edit(self, key: str, *, delete: bool) -> None:
        desk = StoreTtlStorage(self.store)
        now = await desk.get(key)
        if now is None:
            return
        self.edits.append((key, self.clock.now()))
        if delete:
            await desk.compare_and_delete(key, now)
        else:
            other = json.dumps({"address": "desk", "holder": "operator", "fence": 0})
            await desk.compare_and_swap(key, now, other, ttl=self.rng.uniform(0.1, TTL))

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        async def later() -> None:
            await asyncio.sleep(seconds)
            do()

        self.go(later())

    def go(self, work: Any) -> None:
        task = self.loop.create_task(work, context=outside())
        self.healing.add(task)
        task.add_done_callback(self._healed)

    def _healed(self, task: asyncio.Task[None]) -> None:
        self.healing.discard(task)
        if not task.cancelled():
            error = task.exception()
            self.failure = self.failure or (error if isinstance(error, Exception) else None)

    # How it ends

    async def calm(self) -> None:
        """No more trouble: all that was stopped or cut is back, and what was on its way has arrived."""
        for name in ("unavailable", "lost", "never", "slow", "hang", "deaf", "lagged"):
            setattr(self.weather, name, 0.0)
        for process in self.processes:
            self.loop.wake(process.name)
            process.wire.heal()
        while len([process for process in self.alive() if not process.leaving.is_set()]) < 2:
            self.spawn()
        await self.arrivals()
        while self.healing:
            await asyncio.wait(self.healing)

    async def arrivals(self) -> None:
        """Until all that was sent has arrived."""
        arrived = max(process.wire.busy_until for process in self.processes)
        await asyncio.sleep(max(0.0, arrived - self.clock.now()) + 0.001)

    def leads(self) -> bool:
        """Whether key 1 is held."""
        first = LEADER.fill(n=1)
        return any(t.leadership.held and t.leadership.key == first and not t.process.dead for t in self.terms)

    async def lead_again(self) -> None:
        """Once the storage is healthy, somebody leads within two lives of a record."""
        end = self.clock.now() + 2 * TTL
        while not self.leads():
            if self.clock.now() >= end:
                raise Wrong(f"nobody leads {2 * TTL:g} s after the last fault")
            await asyncio.sleep(0.1)
            self.look()
        await asyncio.sleep(max(0.0, end - self.clock.now()))

    async def leave(self) -> None:
        self.over = True
        for process in self.alive():
            process.leaving.set()
        tasks = [process.task for process in self.processes]
        _, pending = await asyncio.wait(tasks, timeout=4 * TTL)
        if pending:
            raise Wrong(f"still there {4 * TTL:g} s after leaving: {sorted(task.get_name() for task in pending)}")
        await self.arrivals()
        while self.healing:
            await asyncio.wait(self.healing)
        self.look()

    async def check_left(self) -> None:
        """All left in good order, so nothing is left but the counters."""
        kept = {kv.key for kv in (await self.store.range("sysvvm/")).items}
        counters = {FENCE.fill(n=number) for number in range(1, self.keys + 1)}
        if not kept <= counters:
            raise Wrong(f"left behind: {sorted(kept - counters)}")


def check_history(store: MemoryStore, keys: int) -> None:
    """Look at every revision: fences grow, and each guarded write is by the holder of the newest."""
    holds: dict[str, tuple[str, int]] = {}
    newest = dict.fromkeys((LEADER.fill(n=number) for number in range(1, keys + 1)), 0)
    for revision, events in store._state.log(1):
        for event in events:
            key, value = event.kv.key, event.kv.value
            if key in newest:
                _check_record(revision, key, value, holds, newest)
            elif key.startswith(COUNT):
                of = LEADER.fill(n=key.removeprefix(COUNT))
                _, fence, name = value.decode().split()
                if holds.get(of) != (name, int(fence)) or int(fence) != newest[of]:
                    raise Wrong(f"revision {revision}: {name} wrote with fence {fence}; newest {newest}, held {holds}")


def _check_record(
    revision: int, key: str, value: bytes, holds: dict[str, tuple[str, int]], newest: dict[str, int]
) -> None:
    before = holds.pop(key, None)
    if not value:
        return
    record = json.loads(value)
    now = holds[key] = (record["holder"], record["fence"])
    if now == before or not record["fence"]:
        return
    if record["fence"] <= newest[key]:
        raise Wrong(f"revision {revision}: {now} leads {key} after fence {newest[key]}")
    newest[key] = record["fence"]


def run_schedule(seed: int, make: type[Process] = Elector, rules: Rules | None = None, *, keys: int = 1) -> Tally:
    """One schedule; Wrong, Deadlock or Leftover, with a note that names the seed, if anything is not as it must be."""
    world = World(seed, make, rules or Rules(), keys=keys)
    try:
        return run_virtual(world.run, loop=world.loop)
    except Exception as error:
        name_run(error, f"seed {seed} ({make.__name__}, {keys} keys): {world.tally}", getattr(world, "store", None))
        raise
