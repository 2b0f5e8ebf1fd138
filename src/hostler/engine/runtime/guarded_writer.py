"""Guarded writer of the leader, and read-your-writes.

Every transaction carries the guard of the leadership, and its decision log entry. A controller decides about a name
only from caches that contain its own writes: an `Expectation` says which writes these are.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from hostler.engine.leadership import check_guard
from hostler.engine.service import leadership_of
from hostler.errors import Conflict, Uncertain
from hostler.ports.store import Delete, Get, KeyValue, Put

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostler.engine.decision_recorder import Tracer
    from hostler.engine.elections import Leadership
    from hostler.engine.service import Standing
    from hostler.keys.cache import Cache
    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.trace import Reason
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
        mirrors: Sequence[Cache[Any]],
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
            self._tracer.add(txn.then, why, subject=subject, fence=self.fence())

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

    def _compared(self, txn: Txn) -> list[tuple[str, Cache[Any]]]:
        """Return the keys that are written, and those that are only compared, with their caches."""
        written = [operation.key for operation in txn.then if isinstance(operation, Put | Delete)]
        compared = (one.key for one in txn.when)
        keys = dict.fromkeys((*written, *compared))
        return [(key, mirror) for key in keys if (mirror := self.expected.mirror_of(key)) is not None]


LAG = 1.0
"""Seconds by which caches may differ from each other and lag behind our own writes."""
_LOOK = 0.005


class Expectation(msgspec.Struct, frozen=True):
    """A key that exists, or (not `there`) does not exist, since `revision`; 0: since an unknown revision."""

    mirror: Cache[Any]
    key: str
    revision: int
    there: bool
    stale: int = 0
    """The revision that the cache held when the key was found to be deleted."""

    def is_met(self) -> bool:
        """Return whether the cache contains the write, or a later one of this key."""
        entry = self.mirror.entries.get(self.key)
        if not self.revision:
            return entry is None or entry.mod_revision != self.stale
        if entry is not None:
            return entry.mod_revision >= self.revision if self.there else entry.mod_revision > self.revision
        if (unreadable := self.mirror.unreadable.get(self.key)) is not None:
            return unreadable.kv.mod_revision >= self.revision
        return self.mirror.revision > self.revision or (not self.there and self.mirror.revision == self.revision)


class Expectations:
    """What the caches must contain before the next decision about each name.

    Once `is_behind(name)` returns False, or `caught_up(name)` True, the caches contain every write and every finding
    that was recorded for the name, or a later state of the same keys. That holds per key: a cache that received only
    the first of several events of one revision is still behind. Nothing is promised about keys of other families, about
    writes of other processes, or about a store that was reset to an older state.
    """

    def __init__(self, mirrors: Sequence[Cache[Any]], *, clock: Clock) -> None:
        """`mirrors`: the caches that decisions are made from."""
        self._mirrors = tuple((mirror.family.prefix(), mirror) for mirror in mirrors)
        self._clock = clock
        self._expected: dict[str, list[Expectation]] = {}

    def mirror_of(self, key: str) -> Cache[Any] | None:
        """Return the cache that has this key, if there is one."""
        for prefix, mirror in self._mirrors:
            if key.startswith(prefix) and mirror.family.matches(key):
                return mirror
        return None

    def wrote(self, name: str, revision: int, operations: Iterable[Operation]) -> None:
        """Expect a transaction that was committed in this revision."""
        now = [
            Expectation(mirror, operation.key, revision, isinstance(operation, Put))
            for operation in operations
            if isinstance(operation, Put | Delete) and (mirror := self.mirror_of(operation.key)) is not None
        ]
        # A cache that has this write has all earlier writes of its family.
        later = [one.mirror for one in now]
        expected = [one for one in self._expected.get(name, ()) if one.mirror not in later] + now
        if expected:
            self._expected[name] = expected

    def read(self, name: str, *entries: Entry[Any] | None) -> None:
        """Expect records that were read from the store: they may contain own writes that were not acknowledged."""
        for entry in entries:
            if entry is not None and (mirror := self.mirror_of(entry.key)) is not None:
                expected = Expectation(mirror, entry.key, entry.mod_revision, there=True)
                self._expected.setdefault(name, []).append(expected)

    def found(self, name: str, mirror: Cache[Any], key: str, kv: Response) -> None:
        """Expect what was found at a key of a cache in place of what the cache contained."""
        if isinstance(kv, KeyValue):
            expected = Expectation(mirror, key, kv.mod_revision, there=True)
        else:
            entry = mirror.entries.get(key)
            expected = Expectation(mirror, key, 0, there=False, stale=0 if entry is None else entry.mod_revision)
        self._expected.setdefault(name, []).append(expected)

    def is_behind(self, name: str) -> bool:
        """Return whether a cache lacks something that is expected for the name."""
        if not all(one.is_met() for one in self._expected.get(name, ())):
            return True
        self._expected.pop(name, None)
        return False

    async def caught_up(self, name: str) -> bool:
        """Wait until the caches contain what is expected for the name; False: they did not within `LAG` seconds."""
        try:
            async with asyncio.timeout(LAG):
                for one in self._expected.get(name, ()):
                    while not one.is_met():
                        if one.revision:
                            await one.mirror.reached(one.revision)
                        if not one.is_met():  # only the first of several events of that revision has arrived
                            await self._clock.sleep(_LOOK)
        except TimeoutError:
            return False
        self._expected.pop(name, None)
        return True
