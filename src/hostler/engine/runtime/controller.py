"""Controllers of the leader: watch, queue, read, decide, write, back off. A feature adds only what it decides.

    caches ──changed──▶ work queue ──name──▶ reconcile: snapshot ─▶ decide ─▶ guarded write
       ▲                    ▲  ▲                  │ failed: a growing delay           │
       │                    │  └──────────────────┘                                   │
       │                    └── resync: every name in turn                            │
       └───────────────────────────────────── store ◀─────────────────────────────────┘

Controllers get names, never events; missing an event does not matter. They interact only through the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from hostler.engine.runtime.guarded_writer import LAG, GuardedWriter
from hostler.engine.runtime.work_queue import WIDTH, WorkQueue
from hostler.errors import Conflict, Unavailable, Uncertain
from hostler.kit.rate_limit import Backoff
from hostler.kit.tasks import run_together

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from hostler.engine.runtime.env import ControllerEnv
    from hostler.engine.service import Standing
    from hostler.keys.cache import Cache

TRIES = 4
"""Decisions in a row for one name, each from newer records, before it has to wait."""


class LeaderService:
    """A service of the leader, and what each of them needs: caches that are read and followed, a guarded writer.

    A subclass implements `begin` and `run`. Everything it writes goes through `_writing`, so that it carries the guard
    of the leadership that `start` received.
    """

    name: str

    def __init__(
        self,
        env: ControllerEnv,
        *,
        mirrors: Sequence[Cache[Any]] = (),
        learns: bool = False,
    ) -> None:
        """`mirrors`, `learns`: as in GuardedWriter."""
        self._store, self._clock, self._rng, self._tell = env.store, env.clock, env.rng, env.tell
        self.counters: dict[str, int] = {}
        self._writing = GuardedWriter(
            self.name, env.store, mirrors, self.counters, env.tracer, clock=env.clock, learns=learns
        )
        self._is_following = False
        self._ends_of_following: list[Callable[[], None]] = []

    async def start(self, standing: Standing) -> None:
        """Read the caches, and start from there."""
        self._writing.standing = standing
        backoff = Backoff(0.05, 2.0, rng=self._rng)
        while True:
            try:
                await self.read_caches()
                break
            except (Conflict, Unavailable, Uncertain):
                await self._clock.sleep(backoff.next())
        self._is_following = True
        await self.begin()

    async def run(self) -> None:
        """Run until cancelled. LeadershipLost: another process leads."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Stop following the caches."""
        self._is_following = False
        while self._ends_of_following:
            self._ends_of_following.pop()()

    # For subclasses

    async def read_caches(self) -> None:
        """Refresh the caches that decisions are made from; retried until the store answers."""

    async def begin(self) -> None:
        """Build indexes, and start following changes (`follow`)."""
        raise NotImplementedError

    def follow(self, *ends: Callable[[], None]) -> None:
        """Keep functions that end a subscription, as `Cache.listen` returns them; `stop` calls them."""
        self._ends_of_following += ends


class Controller(LeaderService):
    """A service of the leader that reconciles names. A subclass implements `reconcile`, `begin` and `resync`."""

    pass_every: float
    """Seconds between two resyncs."""

    def __init__(
        self,
        env: ControllerEnv,
        *,
        width: int = WIDTH,
        mirrors: Sequence[Cache[Any]] = (),
        learns: bool = False,
    ) -> None:
        """`width`: how many names are reconciled at a time."""
        super().__init__(env, mirrors=mirrors, learns=learns)
        self._queues: dict[str, WorkQueue] = {}
        self._queue = self._add_queue("names", self.reconcile, width)

    async def run(self) -> None:
        """Run until cancelled. LeadershipLost: another process leads."""
        queues = {name: queue.run() for name, queue in self._queues.items()}
        await run_together(self.name, {**queues, **self.works(), "pass": self._pass()})

    # For subclasses

    async def reconcile(self, name: str) -> None:
        """Compare desired and observed state of one name, and take the next step. Conflict: retry later."""
        raise NotImplementedError

    async def resync(self, *, first: bool) -> None:
        """Queue names without a change: at the start all of them, then those whose turn it is."""
        raise NotImplementedError

    def works(self) -> dict[str, Coroutine[Any, Any, None]]:
        """Return what else runs."""
        return {}

    # Internal

    def _add_queue(self, label: str, work: Callable[[str], Coroutine[Any, Any, None]], width: int) -> WorkQueue:
        queue = self._queues[label] = WorkQueue(
            work, clock=self._clock, rng=self._rng, tell=self._tell, counters=self.counters, width=width
        )
        return queue

    async def _pass(self) -> None:
        await self.resync(first=True)
        while True:
            await self._clock.sleep(self.pass_every)
            await self.resync(first=False)


class Snapshot(Protocol):
    """The records that one decision is based on."""

    @property
    def unreadable(self) -> object:
        """Return whether a record cannot be decoded: then nothing may be decided."""


S = TypeVar("S", bound=Snapshot)


class Attempt(msgspec.Struct):
    """One of several decisions in a row for one name."""

    number: int = 0
    avoid: set[str] = msgspec.field(default_factory=set)
    """What earlier attempts found to be unsuitable."""


class SnapshotController(Controller, Generic[S]):
    """Decides from a snapshot of the caches, and from the store once that was wrong or an outcome is unknown."""

    async def reconcile(self, name: str) -> None:
        """Take one step. If the caches lack own writes, their events come first."""
        if self._writing.is_behind(name):
            self._queue.add(name, after=LAG)
            return
        snapshot = await self.read_snapshot(name, None) if self._writing.in_doubt(name) else self.snapshot(name)
        attempt = Attempt()
        while attempt.number < TRIES:
            if snapshot.unreadable:
                return
            if await self.step(snapshot, attempt):
                return
            self._writing.count("conflicts")
            snapshot = await self.read_snapshot(name, snapshot)
            attempt.number += 1
        raise Conflict(f"{self.name}: {name}: it changed {TRIES} times in a row; it will be reconciled again")

    def snapshot(self, name: str) -> S:
        """Return the state from the caches."""
        raise NotImplementedError

    async def read_snapshot(self, name: str, last: S | None) -> S:
        """Return the current state in the store, which resolves an unknown outcome (`GuardedWriter.settle`).

        `last`: the snapshot that a decision was just made from.
        """
        raise NotImplementedError

    async def step(self, snapshot: S, attempt: Attempt) -> bool:
        """Decide, and take one step. False: its conditions did not hold."""
        raise NotImplementedError


class BatchController(Controller):
    """Decides from the caches in batches, each once the caches contain the one before."""

    rounds: int
    """Batches for one name in a row before others get their turn."""
    conflicts = 1
    """Conflicts in a row before the name has to wait."""

    async def reconcile(self, name: str) -> None:
        """Take steps until there is nothing left to do for now."""
        conflicts = 0
        for _ in range(self.rounds):
            if not await self._writing.caught_up(name):
                self._queue.add(name, after=LAG)
                return
            try:
                if self._writing.in_doubt(name):
                    await self._writing.resolve(name)
                elif not await self.step(name):
                    return
                conflicts = 0
            except Conflict:
                self.on_conflict(name)
                conflicts += 1
                if conflicts == self.conflicts:
                    raise
        self._queue.add(name, patient=True)

    async def step(self, name: str) -> bool:
        """Do what can be done now; return whether anything was done. Conflict: something changed concurrently."""
        raise NotImplementedError

    def on_conflict(self, name: str) -> None:
        """Note that a condition did not hold."""
