"""The leader's writes for workloads: guarded, logged, counted, and remembered until the caches contain them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.engine.expectation import Expected, known
from hostler.engine.leadership import check_guard
from hostler.engine.service import leadership_of
from hostler.engine.workloads import transactions
from hostler.errors import Conflict, Uncertain
from hostler.keys.inventory import INSTANCE, WORKLOAD
from hostler.keys.vm import VM
from hostler.ports.store import Get, KeyValue, Put

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.engine.controllers.transactions import Txn
    from hostler.engine.decision_recorder import Tracer
    from hostler.engine.service import Standing
    from hostler.engine.view import View
    from hostler.engine.workloads.transactions import Held, New
    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.reason import Reason
    from hostler.ports.store import Comparison, Operation, Response, Store

_INSTANCES, _VMS = INSTANCE.prefix(), VM.prefix()


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the decision entry of a write."""

    what: str
    """Kind of decision; also the name of its counter."""
    why: str
    reasons: tuple[Reason, ...] = ()
    read: tuple[Entry[Any] | None, ...] = ()
    about: tuple[Held, ...] = ()
    """Instances that the write changes."""


class WorkloadWriter:
    """Writes for one leadership, which is set when it begins (`standing`)."""

    def __init__(
        self, store: Store, view: View, counters: dict[str, int], *, clock: Clock, tracer: Tracer | None = None
    ) -> None:
        self._store, self._view, self._counters, self._clock, self._tracer = store, view, counters, clock, tracer
        self._wrote: dict[str, list[Expected]] = {}  # writes that the caches do not contain yet, by workload
        self._doubts: dict[str, tuple[Txn, str]] = {}  # a write of uncertain outcome, by workload
        self._names: set[tuple[str, int]] = set()
        self.standing: Standing | None = None

    def guard(self) -> Comparison:
        """Return the guard of the current leadership. Raise LeadershipLost if there is none."""
        return leadership_of(self.standing, "workloads").guard()

    def count(self, what: str) -> None:
        """Increment a counter."""
        self._counters[what] = self._counters.get(what, 0) + 1

    async def write(self, name: str, txn: Txn, why: Why, *, new: Sequence[New] = ()) -> bool:
        """Commit; return whether there was anything to write. Raise Conflict if a condition did not hold.

        Raise Uncertain if it may have happened. Then `resolve` must succeed before any other decision about the
        workload.
        """
        if not txn.then:
            return False
        self._trace(txn, WORKLOAD.fill(workload=name), why)
        guard = self.guard()
        otherwise: list[Operation] = [Get(guard.key), *transactions.names(new)]
        try:
            result = await self._store.txn([guard, *txn.when], txn.then, otherwise)
        except Uncertain:
            self._doubts[name] = (txn, why.what)
            raise
        if not result.succeeded:
            self._see_why(name, guard, new, result.responses)
            raise Conflict(f"workload {name}: it has just changed; it will be checked again")
        self.count(why.what)
        self._note(name, result.revision, txn)
        return True

    async def aim(self, txn: Txn, about: Entry[Any], why: Why) -> None:
        """Commit a write about one target. Raise Conflict if a condition did not hold."""
        self._trace(txn, about.key, why)
        guard = self.guard()
        result = await self._store.txn([guard, *txn.when], txn.then, [Get(guard.key)])
        if not result.succeeded:
            self._see_why("", guard, (), result.responses)
            raise Conflict(f"{about.key}: it has just changed; it will be checked again")
        self.count(why.what)

    def in_doubt(self, name: str) -> bool:
        """Return whether the outcome of the last write is uncertain."""
        return name in self._doubts

    async def resolve(self, name: str) -> None:
        """Send the same write again. Once it is answered, the first one can have no effect even if it arrives later.

        Raise Conflict if the second one had no effect.
        """
        txn, what = self._doubts[name]
        guard = self.guard()
        result = await self._store.txn([guard, *txn.when], txn.then, [Get(guard.key)])
        del self._doubts[name]
        if not result.succeeded:
            self._see_why(name, guard, (), result.responses)
            raise Conflict(f"workload {name}: a write may have happened; it will be checked again")
        self.count(what)
        self._note(name, result.revision, txn)

    def is_taken(self, name: str, number: int) -> bool:
        """Return whether another VM has the intended name of this instance's VM."""
        return (name, number) in self._names

    # Read-your-writes

    async def caught_up(self, name: str) -> bool:
        """Wait until the caches contain all writes about the workload. Return False on timeout."""
        if name in self._wrote and not await known(self._wrote[name], self._clock):
            return False
        self._wrote.pop(name, None)
        return True

    def _note(self, name: str, revision: int, txn: Txn) -> None:
        found = self._wrote.setdefault(name, [])
        for operation in txn.then:
            key = getattr(operation, "key", "")
            if key.startswith(_VMS):
                found.append(Expected(self._view.vms, key, revision, isinstance(operation, Put)))
            elif key.startswith(_INSTANCES) and INSTANCE.match(key) is not None:
                found.append(Expected(self._view.instances, key, revision, isinstance(operation, Put)))

    # Internals

    def _see_why(self, name: str, guard: Comparison, new: Sequence[New], found: Sequence[Response]) -> None:
        """Handle a failed comparison: raise LeadershipLost if the guard failed, and note VM names that are taken."""
        check_guard(guard, found[0])
        self.count("conflicts")
        for one, taken in zip(new, found[1:]):
            if isinstance(taken, KeyValue):
                self._names.add((name, one.number))

    def _trace(self, txn: Txn, subject: str, why: Why) -> None:
        if self._tracer is None or self.standing is None:
            return
        held = itertools.chain.from_iterable((one.instance, one.vm) for one in why.about)
        self._tracer.add(
            txn.then,
            what=why.what,
            subject=subject,
            why=why.why,
            reasons=why.reasons,
            read=[*why.read, *held],
            fence=self.standing.leadership.fence,
        )
