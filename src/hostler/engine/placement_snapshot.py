"""The cluster as placement sees it, for explanations. Built at the first request and kept current from then on.

Building it takes seconds with many machines; following the caches costs almost nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hostler.engine.controllers.allocations import Allocations
from hostler.keys.families import ALIVE, ARRIVAL, COMMAND, MEMBER

if TYPE_CHECKING:
    from hostler.engine.placement import Cluster
    from hostler.engine.view import View


class PlacementSnapshot:
    """Follows the view and is never older than it. One per process."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._books = Allocations(view, lambda: None)
        self._making = asyncio.Lock()
        self._made = False

    async def cluster(self) -> Cluster:
        """Return all nodes and their machines. Read-only for callers."""
        async with self._making:
            if not self._made:
                self._listen()  # first, because loading takes time
                await self._books.load()
                self._made = True
        return self._books.cluster

    def _listen(self) -> None:
        view, books = self._view, self._books
        view.commands.listen(lambda key: books.sync(COMMAND.parse(key)["vm"]))
        view.arrivals.listen(lambda key: books.sync_arrival(ARRIVAL.parse(key)["vm"]))
        view.vms.listen(self._wish_changed)
        view.members.listen(lambda key: books.sync_node(MEMBER.parse(key)["node"]))
        view.alive.listen(lambda key: books.sync_node(ALIVE.parse(key)["node"]))
        view.inventory.listen(books.sync_node)

    def _wish_changed(self, key: str) -> None:
        vm = key.rpartition("/")[2]
        if vm in self._view.node_of:
            self._books.sync(vm)
