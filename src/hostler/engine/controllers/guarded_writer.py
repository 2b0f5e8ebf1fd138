"""Guarded writer of the leader: transactions are guarded, recorded as decisions, counted, and tracked until cached."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.engine.controllers import messages
from hostler.engine.controllers.transactions import Leader
from hostler.engine.service import leadership_of
from hostler.keys.node import ARRIVAL, COMMAND
from hostler.keys.vm import HANDLE, VM

if TYPE_CHECKING:
    from hostler.engine.controllers.messages import DecisionMessage
    from hostler.engine.controllers.snapshot import VmSnapshot
    from hostler.engine.controllers.transactions import Txn
    from hostler.engine.decision_recorder import Tracer
    from hostler.engine.service import Standing
    from hostler.engine.view import View
    from hostler.ports.store import Store

_PREFIXES = (
    ("vms", VM.prefix()),
    ("handles", HANDLE.prefix()),
    ("commands", COMMAND.prefix()),
    ("arrivals", ARRIVAL.prefix()),
)


class GuardedWriter:
    """Writes for one leadership, which is set when it begins (`standing`)."""

    def __init__(self, store: Store, view: View, counters: dict[str, int], tracer: Tracer | None = None) -> None:
        self._store, self._view, self._counters, self._tracer = store, view, counters, tracer
        self._ahead: dict[str, dict[str, int]] = {}  # revisions that the caches have to reach, by name and family
        self.standing: Standing | None = None

    def leader(self) -> Leader:
        """Return the leadership that the replica holds now. LeadershipLost: none."""
        leadership = leadership_of(self.standing, "machines")
        return Leader(leadership.guard(), leadership.fence)

    async def write(self, seen: VmSnapshot, txn: Txn, what: str, told: DecisionMessage) -> int | None:
        """Commit a transaction; return the revision. None: a condition did not hold."""
        if self._tracer is not None:
            self._tracer.add(
                txn.then,
                what=what,
                subject=VM.prefix() + seen.name,
                why=told.why,
                reasons=told.reasons,
                read=messages.read(seen),
                cause=told.cause,
                fence=0 if self.standing is None else self.standing.leadership.fence,
            )
        result = await self._store.txn(txn.when, txn.then)
        if not result.succeeded:
            return None
        self.count(what)
        ahead = self._ahead.setdefault(seen.name, {})
        for family, prefix in _PREFIXES:
            if any(getattr(operation, "key", "").startswith(prefix) for operation in txn.then):
                ahead[family] = result.revision
        return result.revision

    def learned(self, seen: VmSnapshot) -> None:
        """Note what was read from the store, because it may contain own writes that were not acknowledged."""
        found = {"vms": (seen.vm,), "handles": (seen.handle,), "arrivals": seen.arrivals}
        ahead = self._ahead.setdefault(seen.name, {})
        for family, entries in {**found, "commands": (seen.command, *seen.extra)}.items():
            revisions = (entry.mod_revision for entry in entries if entry is not None)
            ahead[family] = max(ahead.get(family, 0), *revisions, 0)

    def is_ahead(self, name: str) -> bool:
        """Return whether the caches lack our own writes."""
        ahead = self._ahead.get(name, {})
        if any(self._view.mirrors[family].revision < revision for family, revision in ahead.items()):
            return True
        self._ahead.pop(name, None)
        return False

    def count(self, what: str) -> None:
        """Increment a counter for metrics."""
        self._counters[what] = self._counters.get(what, 0) + 1
