"""Heartbeat monitor: since when nodes are unreachable, or reachable, as this process observed it.

Only an unbroken time without heartbeats on one monotonic clock counts. It is bound to the node's record: a node that
returned and left unnoticed has rewritten its record, and then the count starts again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.node import NodeRecord


class _Count(msgspec.Struct, frozen=True):
    since: float
    record: int
    """The revision of the record."""


class HeartbeatMonitor:
    """Observations of one leader; those of another leader do not count."""

    def __init__(self, view: View, *, clock: Clock) -> None:
        self._view, self._clock = view, clock
        self._counts: dict[str, _Count] = {}
        self._reachable: dict[str, float] = {}  # since when

    def look(self, node: str) -> None:
        """Update a node. Call it after each change of the node's record or heartbeat."""
        member = self._view.members.get(node=node)
        is_alive = self._view.alive.get(node=node) is not None
        if member is None or not is_alive:
            self._reachable.pop(node, None)
        else:
            self._reachable.setdefault(node, self._clock.now())
        if member is None or is_alive:
            self._counts.pop(node, None)
            return
        count = self._counts.get(node)
        if count is None or count.record != member.mod_revision:
            self._counts[node] = _Count(self._clock.now(), member.mod_revision)

    def look_at_all(self) -> None:
        """Update every known node."""
        for node in [*self._counts, *(entry.parts["node"] for entry in self._view.members.entries.values())]:
            self.look(node)

    def nodes(self) -> tuple[str, ...]:
        """Return the unreachable nodes."""
        return tuple(self._counts)

    def lasted(self, member: Entry[NodeRecord]) -> float:
        """Return the seconds without heartbeats under this record; 0.0: the node is alive, or was not observed."""
        count = self._counts.get(member.parts["node"])
        if count is None or count.record != member.mod_revision:
            return 0.0
        return self._clock.now() - count.since

    def reachable_for(self, node: str) -> float:
        """Return the seconds since this process first saw the node alive; 0.0: it has not yet."""
        return self._clock.now() - self._reachable.get(node, self._clock.now())
