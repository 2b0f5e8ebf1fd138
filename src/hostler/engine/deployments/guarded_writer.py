"""The leader's transactions: guarded, recorded in the decision log, counted, and awaited in the mirrors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from hostler.engine.expectation import Expected, known
from hostler.engine.leadership import check_guard
from hostler.engine.service import leadership_of
from hostler.errors import Conflict, Uncertain
from hostler.keys.deployment import ALERT, BLUEPRINT, DEPLOYMENT, RETRIES, SLICE, SLICE_OWNER
from hostler.ports.store import Delete, Get, KeyValue, Put

if TYPE_CHECKING:
    from hostler.engine.controllers.transactions import Txn
    from hostler.engine.decision_recorder import Tracer
    from hostler.engine.service import Standing
    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.keys.mirror import Mirror
    from hostler.kit.clock import Clock
    from hostler.model.reason import Reason
    from hostler.ports.store import Comparison, Operation, Response, Store

WRITES = 110
"""Operations in one transaction, without its decision log entry and a record or two that belong to it."""


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """The decision log entry of a write."""

    what: str
    """The kind of decision; also the name of its counter."""
    why: str
    reasons: tuple[Reason, ...] = ()
    read: tuple[Entry[Any] | None, ...] = ()
    cause: str = ""
    """The id of the decision that caused this one, if known."""


class DeploymentWriter:
    """Writer for one leadership, which is set in `standing` when it begins."""

    def __init__(
        self, store: Store, view: View, counters: dict[str, int], *, clock: Clock, tracer: Tracer | None = None
    ) -> None:
        self._store, self._counters, self._clock, self._tracer = store, counters, clock, tracer
        self._families: tuple[tuple[str, Mirror[Any]], ...] = (
            (SLICE.prefix(), view.slices),
            (DEPLOYMENT.prefix(), view.deployments),
            (RETRIES.prefix(), view.retries),
            (SLICE_OWNER.prefix(), view.owners),
            (BLUEPRINT.prefix(), view.blueprints),
            (ALERT.prefix(), view.alerts),
        )
        self._expected: dict[str, list[Expected]] = {}  # writes that the mirrors have not received yet, by name
        self._doubts: dict[str, tuple[Txn, Why]] = {}  # writes whose outcome is unknown, by name
        self.standing: Standing | None = None

    def guard(self) -> Comparison:
        """Return the guard of the current leadership. LeadershipLost: there is none."""
        return leadership_of(self.standing, "deployments").guard()

    def fence(self) -> int:
        """Return the fence of the current leadership."""
        return 0 if self.standing is None else self.standing.leadership.fence

    def count(self, what: str, times: int = 1) -> None:
        """Increase a counter for metrics."""
        self._counters[what] = self._counters.get(what, 0) + times

    async def write(self, name: str, subject: str, txn: Txn, why: Why) -> None:
        """Write a transaction. Conflict: a condition did not hold; once `caught_up`, the mirrors contain the reason.

        Uncertain: it may have been written. It must be `resolved` before anything else is decided about `name`.
        """
        if self._tracer is not None:
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
        await self._send(name, txn, why)

    def in_doubt(self, name: str) -> bool:
        """Return whether the outcome of the last write is unknown."""
        return name in self._doubts

    async def resolve(self, name: str) -> None:
        """Send the same write again. Once it is answered, the first one can have no effect if it still arrives.

        Conflict: the second write did nothing; the first one may have succeeded.
        """
        txn, why = self._doubts[name]
        await self._send(name, txn, why)
        self._doubts.pop(name, None)

    async def caught_up(self, name: str) -> bool:
        """Wait until the mirrors contain what was written or found about `name`; False: timed out."""
        if name in self._expected and not await known(self._expected[name], self._clock):
            return False
        self._expected.pop(name, None)
        return True

    # Internal

    async def _send(self, name: str, txn: Txn, why: Why) -> None:
        guard = self.guard()
        keys = [(key, mirror, there) for operation in txn.then for key, mirror, there in self._touched(operation)]
        compared = self._compared(txn, keys)
        read = [*((key, mirror) for key, mirror, _ in keys), *compared]
        otherwise: list[Operation] = [Get(guard.key), *(Get(key) for key, _ in read)]
        try:
            result = await self._store.txn([guard, *txn.when], txn.then, otherwise)
        except Uncertain:
            self._doubts[name] = (txn, why)
            raise
        if result.succeeded:
            # Once the mirror has this write, it has all earlier writes of the same family.
            later = [mirror for _, mirror, _ in keys]
            before = [one for one in self._expected.get(name, ()) if one.mirror not in later]
            now = [Expected(mirror, key, result.revision, there) for key, mirror, there in keys]
            self._expected[name] = before + now
            self.count(why.what)
            return
        self._doubts.pop(name, None)
        found = result.responses
        check_guard(guard, found[0])
        self.count("conflicts")
        seen = [_seen(mirror, key, kv) for (key, mirror), kv in zip(read, found[1:])]
        self._expected[name] = [*self._expected.get(name, ()), *seen]
        raise Conflict(f"slice {name}: changed concurrently; it will be reconciled again")

    def _compared(self, txn: Txn, written: list[tuple[str, Mirror[Any], bool]]) -> list[tuple[str, Mirror[Any]]]:
        """Return the keys that are compared but not written: those of the spec."""
        known = {key for key, _, _ in written}
        return [
            (one.key, mirror)
            for one in txn.when
            if one.key not in known
            for prefix, mirror in self._families
            if one.key.startswith(prefix)
        ]

    def _touched(self, operation: Operation) -> list[tuple[str, Mirror[Any], bool]]:
        if not isinstance(operation, Put | Delete):
            return []
        key = operation.key
        return [
            (key, mirror, isinstance(operation, Put)) for prefix, mirror in self._families if key.startswith(prefix)
        ]


def _seen(mirror: Mirror[Any], key: str, kv: Response) -> Expected:
    if isinstance(kv, KeyValue):
        return Expected(mirror, key, kv.mod_revision, there=True)
    entry = mirror.entries.get(key)
    return Expected(mirror, key, 0, there=False, stale=0 if entry is None else entry.mod_revision)
