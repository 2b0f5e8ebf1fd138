"""Since when nodes give no sign of life, as this process saw it itself.

What counts is an unbroken silence on one monotonic clock. It is bound to the node's record: a node that came and went
unseen has written its record anew, and then the count starts again.
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
    """Its revision."""


class Silence:
    """Made anew by each leader: what another one saw does not count."""

    def __init__(self, view: View, *, clock: Clock) -> None:
        self._view, self._clock = view, clock
        self._counts: dict[str, _Count] = {}

    def look(self, node: str) -> None:
        """To be called after each change of the node's record or heartbeat."""
        member = self._view.members.get(node=node)
        if member is None or self._view.alive.get(node=node) is not None:
            self._counts.pop(node, None)
            return
        count = self._counts.get(node)
        if count is None or count.record != member.mod_revision:
            self._counts[node] = _Count(self._clock.now(), member.mod_revision)

    def look_at_all(self) -> None:
        """At every node that is known."""
        for node in [*self._counts, *(entry.parts["node"] for entry in self._view.members.entries.values())]:
            self.look(node)

    def nodes(self) -> tuple[str, ...]:
        """Those that are silent."""
        return tuple(self._counts)

    def lasted(self, member: Entry[NodeRecord]) -> float:
        """Seconds of silence under this very record; 0.0 if it lives, or if none was counted."""
        count = self._counts.get(member.parts["node"])
        if count is None or count.record != member.mod_revision:
            return 0.0
        return self._clock.now() - count.since
