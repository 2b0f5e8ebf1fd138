"""The worker at the lab door: takes requests from the queues, writes them down, acknowledges them.

Any number of workers share the queues. Each is present in the store, by a key on a lease, under a name that it has
once; every write compares that key. What a worker holds that is present no more was worked, and its user's record says
so, or never will be: the others give it back to the queues. So each request is worked once, whoever dies when.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from hostler.engine.labs.queue_consumer import Lapsed, Rules, Shift, Unreadable, record_of
from hostler.errors import Closed, Conflict, HostlerError, Invalid, LeaseGone, Refused, Unavailable, Uncertain
from hostler.keys.lab import LAB, LAB_WORKER
from hostler.kit.backoff import Backoff
from hostler.kit.task_group import run_together
from hostler.model.lab import LabWorker as Present

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from hostler.keys.mirror import Mirror
    from hostler.kit.clock import Clock
    from hostler.model.lab import LabCatalogue, LabUser
    from hostler.ports.inbox import Inbox, QueueName, Taken
    from hostler.ports.store import Lease, Store

TTL = 10.0
"""Seconds after which a worker that gives no sign of life is dead."""
RENEWALS = 4
RECLAIM_EVERY = 2.0
WIDTH = 512
"""Requests that it holds at most. Where the leader works in the same process, few round trips count for more."""
PATIENCE = 2.0
"""Seconds that saying goodbye may take."""


class LabWorker:
    """One per process. `labs` is a mirror that is kept up; `catalogue` tells which labs there are now.

    `warn`: of what somebody has to mend, once, and when it is mended; `tell`, of the rest.
    """

    def __init__(
        self,
        store: Store,
        inbox: Inbox,
        labs: Mirror[LabUser],
        *,
        catalogue: Callable[[], LabCatalogue],
        clock: Clock,
        rng: random.Random,
        new_id: Callable[[], str],
        switch: bool = False,
        limits: dict[QueueName, float] | None = None,
        source: str = "",
        tell: Callable[[str], None] = lambda _: None,
        warn: Callable[[str], None] | None = None,
        width: int = WIDTH,
        ttl: float = TTL,
    ) -> None:
        self._store, self._inbox, self._labs = store, inbox, labs
        self._rules = Rules(catalogue, switch, limits or {})
        self._clock, self._rng, self._new_id, self._source, self._tell = clock, rng, new_id, source, tell
        self._warn, self._refusal = warn or tell, ""
        self._width, self._ttl = width, ttl
        self._shift: Shift | None = None
        self.counters = dict.fromkeys(("taken", "worked", "buried", "coalesced", "reclaimed", "outages", "shifts"), 0)
        self.worker = ""
        """Its name while it is present; it never has it again."""

    def state(self) -> dict[str, int]:
        """Counters and present sizes, for metrics."""
        shift = self._shift
        return {**self.counters, "held": 0 if shift is None else shift.held, "present": int(shift is not None)}

    async def run(self) -> None:
        """Until cancelled. Closed: the store or the inbox were closed."""
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
                self._refused(error)
                await self._clock.sleep(patience.next())
                continue
            backoff.reset()
            try:
                await self._be_present(worker, lease, since)
            except Lapsed:
                self._tell(f"lab worker {worker}: the store has not heard of it for too long; it begins anew")
                continue
            except Closed:
                raise
            except Refused as error:  # the door is not as it should be: somebody has to look, and may
                self._refused(error)
            finally:
                self._shift, self.worker = None, ""
                await self._leave(worker, lease)
            await self._clock.sleep(patience.next())

    def _refused(self, error: Refused) -> None:
        why = str(error).rpartition(": ")[2]  # before it stands what was tried, and by whom, which is another each time
        if why != self._refusal:
            self._refusal = why
            self._warn(f"lab worker: {error}; it goes on once that is mended")

    def _mended(self) -> None:
        if self._refusal:
            self._refusal = ""
            self._warn("lab worker: takes requests again")

    # Being present

    async def _appear(self) -> tuple[str, Lease, int]:
        """A name that nobody ever had, the lease that it lives by, and the revision in which it appeared."""
        worker = self._new_id()
        lease = await self._store.grant(self._ttl)
        record = Present(started_at=self._clock.wall(), source=self._source)
        entry = await LAB_WORKER.create(self._store, record, lease=lease, worker=worker)
        return worker, lease, entry.create_revision

    async def _be_present(self, worker: str, lease: Lease, since: int) -> None:
        shift = Shift(
            self._store,
            self._inbox,
            self._labs,
            self._rules,
            worker=worker,
            presence=LAB_WORKER.fill(worker=worker),
            since=since,
            clock=self._clock,
            rng=self._rng,
            tell=self._tell,
            counters=self.counters,
            width=self._width,
        )
        self._shift, self.worker = shift, worker
        self.counters["shifts"] += 1
        works = {"works": shift.run(), "lives": self._live(lease), "reclaims": self._reclaiming(worker, shift)}
        await run_together("lab worker", works)

    async def _live(self, lease: Lease) -> None:
        backoff = Backoff(0.05, self._ttl / RENEWALS, rng=self._rng)
        while True:
            try:
                await lease.keep_alive()
                backoff.reset()
                await self._clock.sleep(self._ttl / RENEWALS)
            except LeaseGone:
                raise Lapsed from None
            except (Unavailable, Uncertain):
                await self._clock.sleep(backoff.next())

    async def _leave(self, worker: str, lease: Lease) -> None:
        """Be present no more, and give back what is held. Where that fails it lapses, and others will do it."""
        with suppress(HostlerError, TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await lease.revoke()  # first: from now on nothing that is still on its way is written
                await self._give_back(worker)

    # The dead

    async def _reclaiming(self, worker: str, shift: Shift) -> None:
        while True:
            with suppress(Unavailable, Uncertain):
                for other in sorted(await self._inbox.workers() - {worker}):
                    if await self._is_gone(other):
                        await self._give_back(other)
                await shift.look()
            if shift.took:
                self._mended()
            await self._clock.sleep(RECLAIM_EVERY)

    async def _is_gone(self, worker: str) -> bool:
        """Asked of the store itself. Who stands at the door was present before, and is never again once it is not."""
        with suppress(Invalid):  # none of ours is called that
            return await self._store.get(LAB_WORKER.fill(worker=worker)) is None
        return False

    async def _give_back(self, worker: str) -> None:
        held = await self._inbox.held(worker)
        worked = await asyncio.gather(*(self._was_worked(taken) for taken in held))
        done = [taken for taken, was in zip(held, worked, strict=True) if was]
        for taken in done:
            why = self._rules.judged(taken)[1]
            if why is not None:  # its user was told, and it is not yet among the dead letters
                await self._inbox.bury(worker, taken, why, self._clock.wall())
        self.counters["reclaimed"] += await self._inbox.release(worker, done)

    async def _was_worked(self, taken: Taken) -> bool:
        request, _ = self._rules.judged(taken)
        if request is None:  # whoever takes it next will bury it
            return False
        found = await self._store.get(LAB.fill(user=request.user))
        try:
            entry = record_of(found)
        except Unreadable:  # the same
            return False
        return entry is not None and entry.value.worked.get(taken.queue) == taken.token
