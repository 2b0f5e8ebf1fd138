"""The transactions of a leader: under its leadership, traced, counted, and remembered until the mirrors know of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.engine.controllers import telling
from hostler.engine.controllers.steps import Leader
from hostler.engine.service import leadership_of
from hostler.keys.node import ARRIVAL, COMMAND
from hostler.keys.vm import HANDLE, VM

if TYPE_CHECKING:
    from hostler.engine.controllers.seen import Seen
    from hostler.engine.controllers.steps import Txn
    from hostler.engine.controllers.telling import Told
    from hostler.engine.service import Standing
    from hostler.engine.tracing import Tracer
    from hostler.engine.view import View
    from hostler.ports.store import Store

_PREFIXES = (
    ("vms", VM.prefix()),
    ("handles", HANDLE.prefix()),
    ("commands", COMMAND.prefix()),
    ("arrivals", ARRIVAL.prefix()),
)


class Writing:
    """Made for one leadership, which is given to it when that begins (`standing`)."""

    def __init__(self, store: Store, view: View, counters: dict[str, int], tracer: Tracer | None = None) -> None:
        self._store, self._view, self._counters, self._tracer = store, view, counters, tracer
        self._wrote: dict[str, tuple[int, tuple[str, ...]]] = {}
        self.standing: Standing | None = None

    def leader(self) -> Leader:
        """The leadership that the replica holds now. LeadershipLost: none."""
        leadership = leadership_of(self.standing, "machines")
        return Leader(leadership.guard(), leadership.fence)

    async def write(self, seen: Seen, txn: Txn, what: str, told: Told) -> int | None:
        """The revision; None: a condition did not hold."""
        if self._tracer is not None:
            self._tracer.add(
                txn.then,
                what=what,
                subject=VM.prefix() + seen.name,
                why=told.why,
                reasons=told.reasons,
                read=telling.read(seen),
                cause=told.cause,
                fence=0 if self.standing is None else self.standing.leadership.fence,
            )
        result = await self._store.txn(txn.when, txn.then)
        if not result.succeeded:
            return None
        self.count(what)
        touched = tuple(
            family
            for family, prefix in _PREFIXES
            if any(getattr(operation, "key", "").startswith(prefix) for operation in txn.then)
        )
        self._wrote[seen.name] = (result.revision, touched)
        return result.revision

    def is_ahead(self, name: str) -> bool:
        """Whether the mirrors do not know yet what we wrote ourselves."""
        wrote = self._wrote.get(name)
        if wrote is None:
            return False
        if any(self._view.mirrors[family].revision < wrote[0] for family in wrote[1]):
            return True
        del self._wrote[name]
        return False

    def count(self, what: str) -> None:
        """One more of these, for metrics."""
        self._counters[what] = self._counters.get(what, 0) + 1
