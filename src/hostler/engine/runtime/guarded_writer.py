"""Guarded writer of the leader: every transaction carries the guard of the leadership, and its decision log entry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from hostler.engine.leadership import check_guard
from hostler.engine.runtime.expectation import Expectations
from hostler.engine.service import leadership_of
from hostler.errors import Conflict, Uncertain
from hostler.ports.store import Delete, Get, Put

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.engine.decision_recorder import Tracer
    from hostler.engine.elections import Leadership
    from hostler.engine.service import Standing
    from hostler.keys.entry import Entry
    from hostler.keys.mirror import Mirror
    from hostler.kit.clock import Clock
    from hostler.model.reason import Reason
    from hostler.ports.store import Comparison, Operation, Response, Store


class Txn(msgspec.Struct):
    """A transaction under construction, without the guard: the writer adds it."""

    when: list[Comparison]
    then: list[Operation]


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """The decision log entry of a write."""

    what: str
    """The kind of decision; also the name of its counter."""
    why: str
    reasons: tuple[Reason, ...] = ()
    read: tuple[Entry[Any] | None, ...] = ()
    cause: Entry[Any] | str = ""
    """The entry that caused the decision, or the id of a decision, if known."""


class ConditionFailed(Conflict):
    """A condition did not hold; nothing was written. `responses` are those to `otherwise`."""

    def __init__(self, message: str, responses: Sequence[Response]) -> None:
        super().__init__(message)
        self.responses = responses


class _Doubt(msgspec.Struct, frozen=True):
    txn: Txn
    why: Why | None
    otherwise: tuple[Operation, ...]


class GuardedWriter:
    """Writes for one leadership, which is set when it begins (`standing`).

    Outcomes of `write`: the revision, for a transaction that was committed; ConditionFailed, if a condition did not
    hold; LeadershipLost, if the guard did not hold; Uncertain, if it may have been committed; Unavailable, if it
    certainly was not. `commit` returns None instead of raising ConditionFailed.

    A write is for a name, or for none (empty). Of a name it is remembered until the caches contain it (`caught_up`,
    `is_behind`), and if its outcome is unknown, until that is resolved: nothing may be decided about the name before.
    Either `resolve` sends it again, or the caller reads the records and calls `settle`.
    """

    def __init__(
        self,
        service: str,
        store: Store,
        mirrors: Sequence[Mirror[Any]],
        counters: dict[str, int],
        tracer: Tracer | None = None,
        *,
        clock: Clock,
        learns: bool = False,
    ) -> None:
        """`mirrors`: the caches that decisions are made from. Without `tracer` decisions are not recorded.

        `learns`: when a condition does not hold, expect what was found in place of what was compared. Once the caches
        have caught up, they contain the reason.
        """
        self._service, self._store, self._counters, self._tracer = service, store, counters, tracer
        self.expected = Expectations(mirrors, clock=clock)
        self._learns = learns
        self._doubts: dict[str, _Doubt] = {}
        self.standing: Standing | None = None

    def leadership(self) -> Leadership:
        """Return the leadership that the replica holds now. LeadershipLost: none."""
        return leadership_of(self.standing, self._service)

    def guard(self) -> Comparison:
        """Return the guard of the current leadership. LeadershipLost: there is none."""
        return self.leadership().guard()

    def fence(self) -> int:
        """Return the fence of the current leadership; 0: not started."""
        return 0 if self.standing is None else self.standing.leadership.fence

    def count(self, what: str, times: int = 1) -> None:
        """Increase a counter for metrics."""
        self._counters[what] = self._counters.get(what, 0) + times

    async def write(
        self, name: str, subject: str, txn: Txn, why: Why | None, *, otherwise: Sequence[Operation] = ()
    ) -> int:
        """Commit a transaction about the object at `subject`; return the revision.

        Without `why` it is neither recorded nor counted. ConditionFailed, a Conflict: a condition did not hold; it has
        the responses to `otherwise`. Uncertain: it may have been written.
        """
        self._record(subject, txn, why)
        try:
            return await self._send(name, txn, why, tuple(otherwise))
        except ConditionFailed:
            self.count("conflicts")
            raise

    async def commit(self, name: str, subject: str, txn: Txn, why: Why | None) -> int | None:
        """Commit a transaction, as `write` does. None: a condition did not hold."""
        self._record(subject, txn, why)
        try:
            return await self._send(name, txn, why, ())
        except ConditionFailed:
            return None

    # Uncertain writes

    def in_doubt(self, name: str) -> bool:
        """Return whether the outcome of the last write is unknown."""
        return name in self._doubts

    def doubtful_keys(self, name: str) -> list[str]:
        """Return the keys that the write of unknown outcome writes; empty: there is none."""
        doubt = self._doubts.get(name)
        return [] if doubt is None else [op.key for op in doubt.txn.then if isinstance(op, Put | Delete)]

    async def resolve(self, name: str) -> None:
        """Send the same write again. Once it is answered, the first one can have no effect if it still arrives.

        Conflict: the second write did nothing; the first one may have succeeded.
        """
        doubt = self._doubts[name]
        try:
            await self._send(name, doubt.txn, doubt.why, doubt.otherwise)
        except ConditionFailed:
            del self._doubts[name]
            self.count("conflicts")
            raise
        del self._doubts[name]

    def settle(self, name: str, *read: Entry[Any] | None) -> None:
        """Record that these records were read after the write of unknown outcome: a decision from them is safe.

        The caches must contain them before the next decision from caches.
        """
        if self._doubts.pop(name, None) is not None:
            self.expected.read(name, *read)

    # Read-your-writes

    def is_behind(self, name: str) -> bool:
        """Return whether the caches lack own writes about the name, or what was found about it."""
        return self.expected.is_behind(name)

    async def caught_up(self, name: str) -> bool:
        """Wait until the caches contain what was written or found about the name; False: timed out."""
        return await self.expected.caught_up(name)

    # Internal

    def _record(self, subject: str, txn: Txn, why: Why | None) -> None:
        if self._tracer is not None and why is not None:
            self._tracer.add(
                txn.then,
                what=why.what,
                subject=subject,
                why=why.why,
                reasons=why.reasons,
                read=why.read,
                cause=why.cause,
                fence=self.fence(),
            )

    async def _send(self, name: str, txn: Txn, why: Why | None, otherwise: tuple[Operation, ...]) -> int:
        guard = self.guard()
        read = self._compared(txn) if self._learns else []
        reads = [Get(guard.key), *otherwise, *(Get(key) for key, _ in read)]
        try:
            result = await self._store.txn([guard, *txn.when], txn.then, reads)
        except Uncertain:
            if name:
                self._doubts[name] = _Doubt(txn, why, otherwise)
            raise
        if result.succeeded:
            if name:
                self.expected.wrote(name, result.revision, txn.then)
            if why is not None:
                self.count(why.what)
            return result.revision
        check_guard(guard, result.responses[0])
        answers, found = result.responses[1 : 1 + len(otherwise)], result.responses[1 + len(otherwise) :]
        for (key, mirror), kv in zip(read, found):
            self.expected.found(name, mirror, key, kv)
        raise ConditionFailed(f"{self._service}: {name}: it has just changed; it will be reconciled again", answers)

    def _compared(self, txn: Txn) -> list[tuple[str, Mirror[Any]]]:
        """Return the keys that are written, and those that are only compared, with their caches."""
        written = [operation.key for operation in txn.then if isinstance(operation, Put | Delete)]
        compared = (one.key for one in txn.when)
        keys = dict.fromkeys((*written, *compared))
        return [(key, mirror) for key in keys if (mirror := self.expected.mirror_of(key)) is not None]
