"""The nodes of lab VMs: which of them are unreachable, and since when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.keys.families import ALIVE, HANDLE
from hostler.model.lab import ORG
from hostler.model.name import fold

if TYPE_CHECKING:
    from collections.abc import Callable

    from hostler.engine.view import View
    from hostler.kit.clock import Clock

QUIET = 10.0
"""Seconds for which a node may be unreachable, as during a restart of its agent, before its labs report it."""
_HANDLES = HANDLE.prefix(org=ORG)


class LabNodeCache:
    """The nodes of one leadership. The cost of a query does not depend on the number of nodes and labs."""

    def __init__(self, view: View, *, clock: Clock) -> None:
        self._view, self._clock = view, clock
        self._where: dict[str, str] = {}  # node by handle key
        self._on: dict[str, dict[str, None]] = {}  # the inverse
        self._lives: set[str] = set()
        self._since: dict[str, float] = {}  # since when the others are seen to be unreachable

    def listen(self, changed: Callable[[str], None]) -> list[Callable[[], None]]:
        """Call `changed(handle key)` when its node becomes unreachable or is back. The returned functions end this."""

        def alive_changed(key: str) -> None:
            node = ALIVE.parse(key)["node"]
            if self._looked_at(node):
                for handle in tuple(self._on.get(node, ())):
                    changed(handle)

        for key in self._view.alive.entries:
            self._looked_at(ALIVE.parse(key)["node"])
        for key in self._view.handles.entries:
            self._noted(key)
        return [self._view.alive.listen(alive_changed), self._view.handles.listen(self._noted)]

    def silent_in(self, node: str) -> float | None:
        """Return the seconds until the node counts as unreachable, 0 if it does; None: reachable, or no node."""
        if not node or self._view.alive.get(node=node) is not None:
            return None
        now = self._clock.now()
        return max(0.0, self._since.setdefault(fold(node), now) + QUIET - now)

    def _looked_at(self, node: str) -> bool:
        """Update the state of a node. Return whether it became reachable or unreachable."""
        if (self._view.alive.get(node=node) is not None) == (node in self._lives):
            return False
        if node in self._lives:
            self._lives.discard(node)
            self._since[node] = self._clock.now()
        else:
            self._lives.add(node)
            self._since.pop(node, None)
        return True

    def _noted(self, key: str) -> None:
        if not key.startswith(_HANDLES):
            return
        entry = self._view.handles.entries.get(key)
        new, old = "" if entry is None else fold(entry.value.node), self._where.pop(key, "")
        if old and old != new:
            del self._on[old][key]
            if not self._on[old]:
                del self._on[old]
        if new:
            self._where[key] = new
            self._on.setdefault(new, {})[key] = None
