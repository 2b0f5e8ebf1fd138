"""Reconciles one instance: read its state, decide, take one step, repeat.

What the agent remembers about an instance may be lost: the store and the driver are authoritative.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from hostler.engine.runtime.work_queue import WORKER_FAILED, WorkQueue
from hostler.engine.slices.decide import MAX_WHY, RESTARTS, SHOWN, WINDOW, Do, Memory, Show, decide
from hostler.engine.slices.status_writer import Change, Outcome
from hostler.errors import Closed, HostlerError, Refused
from hostler.keys.entry import Unreadable
from hostler.model.deployment import SliceSettings, SliceState
from hostler.ports.slices import Life, Run

if TYPE_CHECKING:
    import random

    from hostler.engine.agent.config import NodeEnv
    from hostler.engine.agent.session import Session
    from hostler.engine.deployments.state_machine import Limits
    from hostler.engine.slices.decide import Step
    from hostler.engine.slices.running_cache import RunningCache
    from hostler.engine.slices.status_writer import StatusWriter
    from hostler.model.deployment import SliceInstance
    from hostler.ports.slices import Method, Running, Slices


GRACE = 2 / 3
"""Share of the deactivation timeout that calls in flight get to finish. The rest is for `stop`."""
UNLISTED = 1.0
"""Seconds before a failed listing of the driver is retried."""
_DOING = {
    Do.LOAD: "loading",
    Do.ACTIVATE: "activating",
    Do.DEACTIVATE: "deactivating",
    Do.UNLOAD: "unloading",
    Do.RESTART: "restarting",
}
_log = logging.getLogger("hostler.agent")


class Workers:
    """State shared by all workers of a node's slices. The work queue calls `work` with the id of a run."""

    def __init__(
        self,
        env: NodeEnv,
        slices: Slices,
        session: Session,
        ledger: StatusWriter,
        sight: RunningCache,
        *,
        limits: Limits,
    ) -> None:
        plan, clock, rng = env.config, env.clock, env.rng
        self._slices, self._session, self._ledger, self._sight = slices, session, ledger, sight
        self._clock, self._rng, self._limits = clock, rng, limits
        self.queue = WorkQueue(
            self.work, clock=clock, rng=rng, tell=_log.error, counters={}, width=plan.workers, what="slice"
        )
        self.known: dict[str, InstanceMemory] = {}
        self.parked: dict[str, None] = {}
        """Names that wait until the session may act."""
        self.inherited: dict[str, SliceState] = {}
        """States left by an earlier process of this agent, of instances that no worker has handled yet."""
        self.steps = 0
        self.strays = 0
        """Number of unload steps for instances without a key."""

    async def work(self, name: str) -> None:
        """Reconcile one instance until nothing is left to do for now. Other instances continue if this one fails."""
        try:
            await self._reconcile(name)
        except Exception as error:  # noqa: BLE001 - a bug, or a closed driver: other names must not be affected
            _log.error("slice %s: its worker failed; trying again later", name, exc_info=error)
            self.queue.add(name, after=WORKER_FAILED)

    async def _reconcile(self, name: str) -> None:
        artifact, _, digits = name.rpartition("#")
        key, number = self._ledger.key(artifact), int(digits)
        known = self.known.get(name)
        if known is not None:
            known.untold = False
        while self._session.may_act():
            self.queue.take(name)
            if not await self._look(name):
                return
            entry = self._ledger.look(key)
            if isinstance(entry, Unreadable):
                return
            instance = None if entry is None else entry.value.each().get(number)
            running = self._sight.get(name)
            if instance is None and running is None and (known is None or not known.shown):
                self.known.pop(name, None)
                return
            known = self._memory(name, instance, running)
            run = _run(artifact, number, instance, {} if entry is None else entry.value.settings, running)
            memory = known.memory(self._clock.now(), session=self._session.number, running=running)
            step = decide(run, instance, running, memory)
            if step.do is Do.REST:
                if step.at is not None:
                    self.queue.add_at(name, step.at)
                return
            if step.do is Do.TELL and known.untold:
                known.unsent += 1
                self.queue.add_at(name, self._clock.now() + pause(known.unsent, self._rng))
                return
            if step.do is Do.WITHDRAW:
                await self._withdrawn(known, run, running)
            elif step.do is not Do.TELL or instance is None:
                await self._do(known, run, step)
            else:
                await self._tell(known, key, Change(number, instance, step.instance, show=step.show, running=running))
        self.parked[name] = None

    # Internal

    def _memory(self, name: str, instance: SliceInstance | None, running: Running | None) -> InstanceMemory:
        now = self._clock.now()
        known = self.known.get(name)
        if known is None:
            left = self.inherited.pop(name, None)
            inherited = instance is not None and left is instance.state
            known = self.known[name] = InstanceMemory(instance, now, inherited=inherited)
        known.meet(instance, now)
        known.notice(running, now, self._rng)
        if running is not None and running.life is not Life.ENDED:
            known.inherited = False  # this process adopted it
        return known

    def _overdue(self, known: InstanceMemory) -> None:
        if known.state is not None:
            last = f"; last: {known.detail}" if known.detail else ""
            limit = self._limits.of(known.state) or 0.0
            known.failed = f"{known.state.value.lower()} took longer than {limit:g} s{last}"[:MAX_WHY]

    async def _look(self, name: str) -> bool:
        """Bring the listing up to date and return True; on failure schedule a retry and return False."""
        try:
            await self._sight.fresh()
        except HostlerError as error:
            _log.warning("slices: the driver cannot list running instances: %s", error)
            self.queue.add_at(name, self._clock.now() + UNLISTED)
            return False
        return True

    async def _tell(self, known: InstanceMemory, key: str, change: Change) -> None:
        """Write a change. A failed write is remembered; the caller reads the state again in any case."""
        running = change.running
        if change.show is Show.DROP and not known.shown:
            change.show = Show.KEEP
        elif change.show is Show.PUT:
            known.shown, known.published = True, None
        outcome = await self._ledger.write(key, change)
        known.untold = outcome is Outcome.AWAY
        if outcome is not Outcome.WRITTEN:
            return
        known.unsent = 0
        if change.show is Show.PUT and running is not None:
            known.restarted = 0
            known.published = change.session, running.address, running.methods
        elif change.show is Show.DROP:
            known.shown, known.published = False, None

    async def _withdrawn(self, known: InstanceMemory, run: Run, running: Running | None) -> None:
        """Delete the endpoints of an instance without a key before it is unloaded, so that no call reaches it."""
        methods = (*(() if running is None else running.methods), *(known.published[2] if known.published else ()))
        try:
            await self._ledger.withdraw(run.artifact, run.instance, dict.fromkeys(method.name for method in methods))
        except HostlerError as error:
            known.failing(f"endpoints not withdrawn: {error}", self._clock.now(), self._rng)
        else:
            known.shown, known.published, known.tries = False, None, 0

    async def _do(self, known: InstanceMemory, run: Run, step: Step) -> None:
        """Take a step and remember its error with the instance."""
        self.steps += 1
        if known.state is None:
            self.strays += 1
        limit = self._time_for(known, step.do)
        if limit <= 0:
            self._overdue(known)
            return
        if step.do is Do.RESTART:
            known.fell(self._clock.now())
        try:
            async with asyncio.timeout(limit):
                seen = await self._verb(step.do, run)
        except Closed:
            raise
        except TimeoutError:
            self._sight.doubt()
            known.detail = known.detail or f"{_DOING[step.do]} did not finish"
            if known.state is None:
                known.failing(known.detail, self._clock.now(), self._rng)
            elif step.do is Do.RESTART:
                known.failed = f"{_DOING[step.do]} took longer than {limit:g} s"
            else:
                self._overdue(known)
        except HostlerError as error:
            self._sight.doubt()
            self._on_failure(known, step.do, error)
        else:
            self._sight.learn(run.id, seen)
            known.tries, known.detail = 0, ""
            if step.do is Do.RESTART:
                known.restarted += 1

    def _time_for(self, known: InstanceMemory, do: Do) -> float:
        if known.state is None:
            return self._limits.unloading
        if do is Do.RESTART:
            return self._limits.loading + self._limits.activating
        limit = self._limits.of(known.state) or self._limits.unloading
        return max(0.0, known.begun_at + limit - self._clock.now())

    def _on_failure(self, known: InstanceMemory, do: Do, error: HostlerError) -> None:
        now, why = self._clock.now(), (str(error) or type(error).__name__)[:MAX_WHY]
        _log.warning("slices: %s failed: %s", _DOING[do], why)
        if do is Do.RESTART:
            known.detail = why  # counts as a restart; the next one follows after a longer pause
        elif isinstance(error, Refused) and known.state is not None:
            known.failed = why
        else:
            known.failing(why, now, self._rng)
            limit = None if known.state is None else self._limits.of(known.state)
            if limit is not None:
                known.due_at = min(known.due_at, known.begun_at + limit)

    async def _verb(self, do: Do, run: Run) -> Running | None:
        if do is Do.LOAD:
            return await self._slices.load(run)
        if do is Do.ACTIVATE:
            return await self._slices.activate(run)
        if do is Do.DEACTIVATE:
            return await self._slices.deactivate(run, grace=GRACE * self._limits.deactivating)
        if do is Do.RESTART:
            await self._slices.load(run)
            return await self._slices.activate(run)
        await self._slices.unload(run)
        return None


def _run(
    artifact: str,
    number: int,
    instance: SliceInstance | None,
    settings: dict[int, SliceSettings],
    running: Running | None,
) -> Run:
    if instance is None and running is not None:
        return running.run
    template = 0 if instance is None else instance.template
    return Run(
        artifact=artifact, instance=number, template=template, settings=settings.get(template) or SliceSettings()
    )


FIRST_PAUSE = 0.2
LONGEST_PAUSE = 10.0


def pause(failures: int, rng: random.Random) -> float:
    """Return the seconds to wait after this number of consecutive failures."""
    span = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(max(0, failures - 1), 16))
    return rng.uniform(span / 2, span)


class InstanceMemory:
    """Memory of one instance, from its first observation until it is gone."""

    __slots__ = (
        "begun_at",
        "detail",
        "due_at",
        "ended",
        "failed",
        "fallen",
        "falls",
        "inherited",
        "published",
        "restarted",
        "shown",
        "state",
        "tries",
        "unsent",
        "untold",
    )

    def __init__(self, instance: SliceInstance | None, now: float, *, inherited: bool) -> None:
        self.state = None if instance is None else instance.state
        self.inherited = inherited
        self.begun_at = now
        """When the instance entered its state, as far as this process knows."""
        self.tries = 0
        self.due_at = 0.0
        self.failed = ""
        self.detail = ""
        self.ended = ""
        """Why the process last exited in this state."""
        self.fallen = False
        """The process exited, and the pause before its restart has begun."""
        self.falls: deque[float] = deque(maxlen=RESTARTS + 1)
        """Times of the restarts."""
        self.restarted = 0
        self.untold = False
        self.unsent = 0
        """Consecutive failures to write to the store."""
        # An instance first seen in a state with endpoints was published by an earlier process.
        # A running instance without a key may have had one.
        self.shown = self.state is None or self.state in SHOWN
        self.published: tuple[int, str, tuple[Method, ...]] | None = None
        """Session, address and methods of the published endpoints."""

    def meet(self, instance: SliceInstance | None, now: float) -> None:
        """Take over the observed state. A new state clears the failures of the old one."""
        state = None if instance is None else instance.state
        if state is self.state:
            return
        if state is None or self.state is None:
            # The number is used by a new instance. The last one may have been removed by hand and left its endpoints.
            self.shown = self.shown or state in SHOWN
            self.falls.clear()
        self.state, self.begun_at, self.inherited = state, now, False
        self.tries, self.due_at, self.failed, self.detail = 0, 0.0, "", ""
        self.fallen, self.restarted, self.untold, self.ended = False, 0, False, ""

    def notice(self, running: Running | None, now: float, rng: random.Random) -> None:
        """Schedule the restart of an active instance that exited. The pause grows with each restart."""
        if self.state is not SliceState.ACTIVE or (running is not None and running.life is Life.ACTIVE):
            self.fallen = False
        elif not self.fallen:
            self.fallen = True
            if running is not None and running.detail:
                self.detail = self.ended = running.detail[:MAX_WHY]
            self.due_at = now + pause(1 + self._recent(now), rng)

    def failing(self, why: str, now: float, rng: random.Random) -> None:
        """Record that a step failed, and schedule the next attempt."""
        self.tries += 1
        self.detail = why[:MAX_WHY]
        self.due_at = now + pause(self.tries, rng)

    def fell(self, now: float) -> None:
        """Record a restart."""
        self.falls.append(now)
        self.fallen = False

    def memory(self, now: float, *, session: int, running: Running | None) -> Memory:
        """Return the memory as a value for `decide`."""
        right = (
            self.published is not None
            and running is not None
            and self.published == (session, running.address, running.methods)
        )
        return Memory(
            inherited=self.inherited,
            shown=self.shown,
            right=right,
            failed=self.failed,
            untold=self.untold,
            falls=self._recent(now),
            restarted=self.restarted,
            detail=self.detail,
            tries=self.tries,
            ended=self.ended,
            due_at=self.due_at,
            now=now,
        )

    def _recent(self, now: float) -> int:
        while self.falls and self.falls[0] <= now - WINDOW:
            self.falls.popleft()
        return len(self.falls)
