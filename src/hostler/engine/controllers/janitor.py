"""What has expired: virtual machines, tokens, old audit and traces. One bounded batch at a time."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.engine.controllers import attic
from hostler.engine.controllers.attic import Attic
from hostler.engine.leadership import check_guard
from hostler.engine.service import leadership_of
from hostler.engine.write import instants
from hostler.errors import Closed, HostlerError, LeadershipLost, Unavailable, Uncertain
from hostler.keys.access import AUDIT, TOKEN
from hostler.keys.trace import SILENT, TRACE
from hostler.keys.vm import VM
from hostler.kit.backoff import Backoff
from hostler.kit.plural import counted
from hostler.model.access import Audit
from hostler.model.lab import utc_time
from hostler.ports.store import Delete, DeletePrefix, Put

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from hostler.engine.service import Standing
    from hostler.engine.tracing import Tracer
    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.vm import VirtualMachine
    from hostler.ports.store import Comparison, Operation, Store

EVERY = 1.0
TOKENS_EVERY = 60.0
AUDIT_EVERY = 600.0
AUDIT_KEPT = 90 * 86400.0
TRACES_EVERY = 60.0
TRACE_BATCHES = 20
"""Of one round: traces come faster than anything else."""
BATCH = 50
"""Operations of one transaction, and machines of one round."""
WHO = "hostler"


class Janitor:
    """A service for a replica's controllers. `audit_kept`, `traces_kept`: seconds that those are kept.

    Without `tracer` its decisions leave no trace.
    """

    name = "janitor"

    def __init__(
        self,
        store: Store,
        view: View,
        *,
        clock: Clock,
        rng: random.Random,
        new_id: Callable[[], str],
        audit_kept: float = AUDIT_KEPT,
        traces_kept: float = attic.KEPT,
        most_traces: int = attic.MOST,
        tracer: Tracer | None = None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._store, self._view, self._clock, self._new_id = store, view, clock, new_id
        self._kept, self._tracer, self._tell = audit_kept, tracer, tell
        self._attic = Attic(store, kept=traces_kept, most=most_traces)
        self._backoff = Backoff(EVERY, 30.0, rng=rng)
        self.counters: dict[str, int] = {}
        self._standing: Standing | None = None
        self._listening = False
        self._ends_of_listening: list[Callable[[], None]] = []
        self._ends: list[tuple[float, str]] = []  # a heap; what it says is looked up before it is believed

    async def start(self, standing: Standing) -> None:
        """Note who expires when."""
        self._standing = standing
        self._listening = True
        self._ends_of_listening = [self._view.vms.listen(self._note)]
        for key in self._view.vms.entries:
            self._note(key)

    async def run(self) -> None:
        """Until cancelled. LeadershipLost: somebody else leads."""
        tokens_at = audit_at = traces_at = self._clock.now()
        while True:
            pause = EVERY
            try:
                await self._expire_machines()
                if self._clock.now() >= tokens_at:
                    tokens_at = self._clock.now() + (EVERY if await self._expire_tokens() else TOKENS_EVERY)
                if self._clock.now() >= audit_at:
                    audit_at = self._clock.now() + (EVERY if await self._forget_audit() else AUDIT_EVERY)
                if self._clock.now() >= traces_at:
                    traces_at = self._clock.now() + (EVERY if await self._forget_traces() else TRACES_EVERY)
                self._backoff.reset()
            except (Unavailable, Uncertain):
                pause = self._backoff.next()
            except (LeadershipLost, Closed):
                raise
            except HostlerError as error:
                self._tell(f"janitor: {error}; it will be tried again")
                pause = self._backoff.next()
            await self._clock.sleep(pause)

    async def stop(self) -> None:
        """Hear no more."""
        self._listening = False
        for end in self._ends_of_listening:
            end()

    # Inside

    def _note(self, key: str) -> None:
        entry = self._view.vms.entries.get(key)
        if self._listening and entry is not None and entry.value.expires_at is not None and not entry.value.deleting:
            heapq.heappush(self._ends, (entry.value.expires_at, key))

    async def _expire_machines(self) -> None:
        now = self._clock.wall()
        for _ in range(BATCH):
            if not self._ends or self._ends[0][0] > now:
                return
            # Taken out before the wait: another that ends earlier may be noted meanwhile, and stand first then.
            end = heapq.heappop(self._ends)
            entry = self._view.vms.entries.get(end[1])
            if entry is None or not _expired(entry.value, now):
                continue
            done = False
            try:
                done = await self._expire(entry)
            finally:
                if not done:
                    heapq.heappush(self._ends, end)
            if not done:
                return  # it has just changed, and the mirror will know in a moment

    async def _expire(self, entry: Entry[VirtualMachine]) -> bool:
        """Wish it away, in its owner's place; whether it was done."""
        vm = msgspec.structs.replace(entry.value, deleting=True, generation=entry.value.generation + 1)
        at = self._clock.wall()
        day, instant = instants(at)
        audit = Audit(who=WHO, verb="vm.expire", subject=entry.key, before=entry.mod_revision, at=at, name=vm.name)
        then: list[Operation] = [
            Put(entry.key, VM.encode(vm)),
            AUDIT.put(audit, day=day, write=f"{instant}-{self._new_id()}"),
        ]
        self._trace(then, "expire", entry.key, f"its time was over at {utc_time(vm.expires_at or at)}", read=[entry])
        done = await self._write([VM.unchanged(entry)], then)
        if done:
            self._count("expired_vms", 1)
        return done

    async def _expire_tokens(self) -> bool:
        """One batch; whether there may be more."""
        now = self._clock.wall()
        entries = (entry for entry in self._view.tokens.entries.values())
        over = [entry for entry in entries if entry.value.expires_at is not None and entry.value.expires_at <= now]
        batch = over[:BATCH]
        if not batch:
            return False
        then: list[Operation] = [Delete(entry.key) for entry in batch]
        self._trace(
            then, "expire_tokens", TOKEN.prefix(), counted(len(batch), "token has expired", "tokens have expired")
        )
        if await self._write([TOKEN.unchanged(entry) for entry in batch], then):
            self._count("expired_tokens", len(batch))
        return len(over) > len(batch)

    async def _forget_audit(self) -> bool:
        """One batch of what is too old; whether there may be more. Days are kept whole."""
        oldest, _ = instants(self._clock.wall() - self._kept)
        page = await self._store.range(AUDIT.prefix(), limit=BATCH, keys_only=True)
        old = [kv for kv in page.items if (AUDIT.match(kv.key) or {"day": oldest})["day"] < oldest]
        if not old:
            return False
        then: list[Operation] = [Delete(kv.key) for kv in old]
        days = f"{self._kept / 86400:g} days"
        lines = counted(len(old), "line of the audit is", "lines of the audit are")
        self._trace(then, "forget_audit", AUDIT.prefix(), f"{lines} older than {days}")
        if await self._write([], then):
            self._count("forgotten_audit", len(old))
        return len(old) == BATCH

    async def _forget_traces(self) -> bool:
        """Some batches of what is too old, or too much; whether there may be more."""
        if self._attic.kept == 0 and self._view.silences.entries:
            await self._write([], [DeletePrefix(SILENT.prefix())])
        for _ in range(TRACE_BATCHES):
            await self._attic.count()
            old, why = await self._attic.oldest(self._clock.wall())
            if not old:
                return False
            then: list[Operation] = [Delete(key) for key in old]
            self._trace(then, "forget_traces", TRACE.prefix(), f"{len(old)} traces go: {why}")
            if not await self._write([], then):
                return True
            self._attic.removed(len(old))
            self._count("forgotten_traces", len(old))
            if len(old) < attic.BATCH:
                return False
        return True

    def _trace(
        self, then: list[Operation], what: str, subject: str, why: str, *, read: Sequence[Entry[Any]] = ()
    ) -> None:
        if self._tracer is not None:
            fence = 0 if self._standing is None else self._standing.leadership.fence
            self._tracer.add(then, what=what, subject=subject, why=why, read=read, fence=fence)

    async def _write(self, when: list[Comparison], then: list[Operation]) -> bool:
        """False: what it was about has changed. LeadershipLost: somebody else leads."""
        guard = leadership_of(self._standing, "janitor").guard()
        if (await self._store.txn([guard, *when], then)).succeeded:
            return True
        check_guard(guard, await self._store.get(guard.key))
        return False

    def _count(self, what: str, number: int) -> None:
        self.counters[what] = self.counters.get(what, 0) + number


def _expired(vm: VirtualMachine, now: float) -> bool:
    return vm.expires_at is not None and vm.expires_at <= now and not vm.deleting
