"""The lab worker: takes requests from the queues, writes them to the store, acknowledges them.

Any number of workers share the queues. Each has a presence key in the store, on a lease, under a name that is used only
once. Every write compares that key. A request held by a worker without a presence key was either processed, which its
user's record shows, or never will be; the other workers return it to the queues. So each request is processed exactly
once, whichever worker dies at whatever time.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from hostler.engine.labs.queue_consumer import Lapsed, QueueConsumer, Rules, Unreadable, WorkerPresence, record_of
from hostler.engine.runtime.env import ControllerEnv
from hostler.errors import Closed, Conflict, HostlerError, Invalid, LeaseGone, Refused, Unavailable, Uncertain
from hostler.keys.lab import LAB, LAB_WORKER
from hostler.kit.rate_limit import Backoff
from hostler.kit.tasks import run_together
from hostler.model.lab import LabWorker as Present

if TYPE_CHECKING:
    from hostler.engine.runtime.env import Env
    from hostler.keys.cache import Cache
    from hostler.model.lab import LabUser
    from hostler.ports.inbox import Inbox, Taken
    from hostler.ports.store import Lease, Store

TTL = 10.0
"""Seconds without a heartbeat after which a worker counts as dead."""
RENEWALS = 4
RECLAIM_EVERY = 2.0
WIDTH = 512
"""Maximum number of held requests. If the leader runs in the same process, few round trips matter more."""
PATIENCE = 2.0
"""Seconds that the shutdown may take."""


class LabWorker:
    """The lab worker; one per process. `labs` is a running cache; `source` names the process in the worker's record.

    Problems that an operator must fix are warned of once, and their end too.
    """

    def __init__(
        self,
        store: Store,
        inbox: Inbox,
        labs: Cache[LabUser],
        env: Env,
        rules: Rules,
        *,
        source: str = "",
        width: int = WIDTH,
    ) -> None:
        self._store, self._inbox, self._labs, self._rules = store, inbox, labs, rules
        self._clock, self._rng, self._new_id = env.clock, env.rng, env.new_id
        self._tell, self._warn, self._refusal = env.tell, env.warn, ""
        self._source, self._width = source, width
        self._shift: QueueConsumer | None = None
        self.counters = dict.fromkeys(("taken", "worked", "buried", "coalesced", "reclaimed", "outages", "shifts"), 0)
        self.worker = ""
        """Its name while it is present; a name is never used again."""

    def state(self) -> dict[str, int]:
        """Return counters and current sizes, for metrics."""
        shift = self._shift
        return {**self.counters, "held": 0 if shift is None else shift.held, "present": int(shift is not None)}

    async def run(self) -> None:
        """Run until cancelled. Raise Closed if the store or the inbox were closed."""
        backoff, patience = Backoff(0.05, 2.0, rng=self._rng), Backoff(1.0, 30.0, rng=self._rng)
        while True:
            try:
                worker, lease, since = await self._appear()
            except (Unavailable, Uncertain, Conflict, LeaseGone):
                await self._clock.sleep(backoff.next())
                continue
            except Closed:
                raise
            except Refused as error:
                self._on_refusal(error)
                await self._clock.sleep(patience.next())
                continue
            backoff.reset()
            try:
                await self._be_present(worker, lease, since)
            except Lapsed:
                self._tell(f"lab worker {worker}: its lease expired; it registers again")
                continue
            except Closed:
                raise
            except Refused as error:  # the queues are misconfigured: an operator has to act
                self._on_refusal(error)
            finally:
                self._shift, self.worker = None, ""
                await self._leave(worker, lease)
            await self._clock.sleep(patience.next())

    def _on_refusal(self, error: Refused) -> None:
        why = str(error).rpartition(": ")[2]  # the part before it names the attempt, which differs each time
        if why != self._refusal:
            self._refusal = why
            self._warn(f"lab worker: {error}; it continues once that is fixed")

    def _on_recovery(self) -> None:
        if self._refusal:
            self._refusal = ""
            self._warn("lab worker: takes requests again")

    # Presence

    async def _appear(self) -> tuple[str, Lease, int]:
        """Return a new unique name, its lease, and the revision in which its key was created."""
        worker = self._new_id()
        lease = await self._store.grant(TTL)
        record = Present(started_at=self._clock.wall(), source=self._source)
        entry = await LAB_WORKER.create(self._store, record, lease=lease, worker=worker)
        return worker, lease, entry.create_revision

    async def _be_present(self, worker: str, lease: Lease, since: int) -> None:
        shift = QueueConsumer(
            ControllerEnv(store=self._store, clock=self._clock, rng=self._rng, tell=self._tell),
            self._inbox,
            self._labs,
            self._rules,
            WorkerPresence(worker, LAB_WORKER.fill(worker=worker), since),
            counters=self.counters,
            width=self._width,
        )
        self._shift, self.worker = shift, worker
        self.counters["shifts"] += 1
        works = {"works": shift.run(), "lives": self._live(lease), "reclaims": self._reclaiming(worker, shift)}
        await run_together("lab worker", works)

    async def _live(self, lease: Lease) -> None:
        backoff = Backoff(0.05, TTL / RENEWALS, rng=self._rng)
        while True:
            try:
                await lease.keep_alive()
                backoff.reset()
                await self._clock.sleep(TTL / RENEWALS)
            except LeaseGone:
                raise Lapsed from None
            except (Unavailable, Uncertain):
                await self._clock.sleep(backoff.next())

    async def _leave(self, worker: str, lease: Lease) -> None:
        """Delete the presence key and return what is held. If that fails, the lease expires and other workers do it."""
        with suppress(HostlerError, TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await lease.revoke()  # first: from now on no write that is still in flight succeeds
                await self._give_back(worker)

    # Dead workers

    async def _reclaiming(self, worker: str, shift: QueueConsumer) -> None:
        while True:
            with suppress(Unavailable, Uncertain):
                for other in sorted(await self._inbox.workers() - {worker}):
                    if await self._is_gone(other):
                        await self._give_back(other)
                await shift.look()
            if shift.took:
                self._on_recovery()
            await self._clock.sleep(RECLAIM_EVERY)

    async def _is_gone(self, worker: str) -> bool:
        """Return whether a worker is dead, by the store. A worker in the inbox had a key, and never gets it again."""
        with suppress(Invalid):  # no worker can have this name
            return await self._store.get(LAB_WORKER.fill(worker=worker)) is None
        return False

    async def _give_back(self, worker: str) -> None:
        held = await self._inbox.held(worker)
        worked = await asyncio.gather(*(self._was_worked(taken) for taken in held))
        done = [taken for taken, was in zip(held, worked, strict=True) if was]
        for taken in done:
            why = self._rules.judge(taken)[1]
            if why is not None:  # its user was informed, and it is not in the dead-letter queue yet
                await self._inbox.bury(worker, taken, why, self._clock.wall())
        self.counters["reclaimed"] += await self._inbox.release(worker, done)

    async def _was_worked(self, taken: Taken) -> bool:
        request, _ = self._rules.judge(taken)
        if request is None:  # the next worker that takes it will dead-letter it
            return False
        found = await self._store.get(LAB.fill(user=request.user))
        try:
            entry = record_of(found)
        except Unreadable:  # the next worker will dead-letter it, too
            return False
        return entry is not None and entry.value.worked.get(taken.queue) == taken.token
