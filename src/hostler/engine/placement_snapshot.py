"""The cluster as placement sees it, for those who ask why: made when it is first asked for, and kept up from then on.

Building it takes seconds where there are many machines; following the mirrors takes next to nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hostler.engine.controllers.allocations import Books
from hostler.keys.node import ALIVE, ARRIVAL, COMMAND, MEMBER

if TYPE_CHECKING:
    from hostler.engine.placement import Cluster
    from hostler.engine.view import View


class Surroundings:
    """One per process. It follows the view, by which it is never older than that."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._books = Books(view, lambda: None)
        self._making = asyncio.Lock()
        self._made = False

    async def cluster(self) -> Cluster:
        """All nodes, and what stands on them. To be looked at, not to be changed."""
        async with self._making:
            if not self._made:
                self._listen()  # first, for reading it all takes a while
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
