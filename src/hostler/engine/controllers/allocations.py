"""Allocations per node: the cluster as placement sees it, from the caches and the leader's own writes.

An own decision counts from the instant it is made, before the caches contain it, so that concurrent placements never
allocate the same capacity twice. It is withdrawn if its transaction fails.

For explanations, a process without own decisions builds the cluster at the first request and keeps it current from then
on. Building it takes seconds with many machines; following the caches costs almost nothing.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.placement import Cluster, node_state, wanted_of_command
from hostler.engine.runtime.guarded_writer import Expectation
from hostler.keys.families import ALIVE, ARRIVAL, COMMAND, MEMBER, VM
from hostler.kit.tasks import Fairness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hostler.engine.placement import NodeState, PlacementRequest
    from hostler.engine.view import View
    from hostler.model.node import NodeRecord


VMS = VM.prefix()


class _Own(msgspec.Struct):
    """A decision of this leader: in flight, or written, until the cache contains it."""

    node: str
    written: Expectation | None = None

    @property
    def counts(self) -> bool:
        """Return whether it is newer than the cache."""
        return self.written is None or not self.written.is_met()


def on_its_way(vm: str) -> str:
    """Return the id under which capacity is reserved for an arriving machine."""
    return f"{vm} on its way"


class Allocations:
    """Tracks allocations. `freed` is called when capacity may have become available."""

    def __init__(self, view: View, freed: Callable[[], None]) -> None:
        self._view, self._freed = view, freed
        self.cluster = Cluster()
        self._own: dict[str, _Own] = {}
        self._names: dict[str, str] = {}  # org/project/vm by the machine's id
        self._expected: dict[str, _Own] = {}  # own migrations, by machine

    async def load(self) -> None:
        """Load from the view. Changes that arrive during the load must be reported, as always."""
        view, fairness = self._view, Fairness()
        self.cluster = Cluster(self._state(entry.parts["node"], entry.value) for entry in view.members.entries.values())
        self._own.clear()
        self._names.clear()
        for vm in tuple(view.node_of):
            self.sync(vm)
            await fairness.share()
        self._expected.clear()
        for entry in tuple(view.arrivals.entries.values()):
            self.sync_arrival(entry.parts["vm"])

    def name_of(self, vm: str) -> str | None:
        """Return `org/project/vm` of a machine with an allocation."""
        return self._names.get(vm)

    def sync_node(self, node: str) -> None:
        """Update a node after a change of its record, its heartbeat or its inventory data."""
        member = self._view.members.get(node=node)
        if member is None:
            self.cluster.remove_node(node)
            return
        state = self._state(node, member.value)
        before = self.cluster.slots.get(node)
        if before is None or before.state != state:
            self.cluster.put_node(state)
            self._freed()

    def _state(self, node: str, record: NodeRecord) -> NodeState:
        inventory = self._view.inventory
        blade = inventory.blade(node)
        return node_state(
            record,
            self._view.alive.get(node=node) is not None,
            objection=inventory.objection(node),
            wiring=inventory.wiring(node),
            capacity=None if blade is None else blade.capacity,
            labels={} if blade is None else blade.labels,
        )

    def sync(self, vm: str) -> None:
        """Update a machine after a change of its command or spec."""
        own = self._own.get(vm)
        if own is not None:
            if own.counts:
                return
            del self._own[vm]
        node = self._view.node_of.get(vm)
        if node is None:
            self._names.pop(vm, None)
            if self.cluster.node_of(vm) is not None:
                self.cluster.free(vm)
                self._freed()
            return
        entry = self._view.commands.entries.get(COMMAND.fill(node=node, vm=vm))
        if entry is None:
            return
        command = entry.value
        name = self._names[vm] = f"{command.org}/{command.project}/{command.vm}"
        vm_entry = self._view.vms.entries.get(VMS + name)
        self.cluster.use(vm, node, wanted_of_command(command, None if vm_entry is None else vm_entry.value))

    def sync_arrival(self, vm: str) -> None:
        """Update an arriving machine.

        It has an allocation on the target, too, until it has arrived or the migration ends.
        """
        own = self._expected.get(vm)
        if own is not None:
            if own.counts:
                return
            del self._expected[vm]
        arrivals = self._view.arrivals_of(vm)
        if not arrivals:
            if self.cluster.node_of(on_its_way(vm)) is not None:
                self.cluster.free(on_its_way(vm))
                self._freed()
            return
        command = arrivals[0].value.command
        vm_entry = self._view.vms.entries.get(f"{VMS}{command.org}/{command.project}/{command.vm}")
        self._expect(
            wanted_of_command(command, None if vm_entry is None else vm_entry.value), arrivals[0].parts["node"]
        )

    def _expect(self, wanted: PlacementRequest, node: str) -> None:
        """Reserve capacity on the target.

        Rules apply there from now on: otherwise two machines with anti-affinity could meet.
        """
        kept = msgspec.structs.replace(wanted, vm=on_its_way(wanted.vm))
        self.cluster.use(kept.vm, node, kept)

    @contextmanager
    def alone(self, vm: str) -> Iterator[Cluster]:
        """Yield the cluster for choosing a node for that machine, without its own reservation for an arrival."""
        if self.cluster.node_of(on_its_way(vm)) is None:
            yield self.cluster
            return
        with self.cluster.without(on_its_way(vm)):
            yield self.cluster

    # Own decisions

    def expect(self, node: str, wanted: PlacementRequest) -> None:
        """Reserve capacity for a migration that begins. `confirm_arrival` has to follow."""
        self._expected[wanted.vm] = _Own(node)
        self._expect(wanted, node)

    def confirm_arrival(self, vm: str, revision: int | None) -> None:
        """Report that it was written in this revision; None: it was not, and the cache counts again."""
        if revision is None:
            self._expected.pop(vm, None)
        elif (own := self._expected.get(vm)) is not None:
            key = ARRIVAL.fill(node=own.node, vm=vm)
            own.written = Expectation(self._view.arrivals, key, revision, there=True)
        self.sync_arrival(vm)

    def reserve(self, vm: str, node: str, wanted: PlacementRequest) -> None:
        """Reserve capacity. `keep` or `cancel` has to follow."""
        self._own[vm] = _Own(node)
        self.cluster.use(vm, node, wanted)

    def keep(self, vm: str, revision: int) -> None:
        """Report that it was written in this revision."""
        own = self._own.get(vm)
        if own is not None:
            key = COMMAND.fill(node=own.node, vm=vm)
            own.written = Expectation(self._view.commands, key, revision, there=True)
            self.sync(vm)

    def cancel(self, vm: str) -> None:
        """Report that it was not written: the cache counts again."""
        if self._own.pop(vm, None) is not None:
            self.sync(vm)


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
