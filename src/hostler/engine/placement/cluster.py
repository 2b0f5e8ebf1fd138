"""Nodes and their machines, indexed so that placement need not visit each node."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from hostler.engine.placement.constraints import Project
from hostler.engine.placement.node_order import Block, Order
from hostler.engine.placement.node_state import NodeSlot, Sites
from hostler.errors import Invalid
from hostler.model.inventory import Capacity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hostler.engine.placement.request import Decision, NodeState, PlacementRequest

_REMEMBERED = 1_000


class Cluster:
    """Nodes, and the allocations of machines on them. The result does not depend on the order of updates.

    A machine may be put on a node that is not known yet: its allocation counts once the node is. Nothing is refused
    here: allocations may exceed the capacity of a node.
    """

    def __init__(self, nodes: Iterable[NodeState] = ()) -> None:
        self.slots: dict[str, NodeSlot] = {}
        self.projects: dict[str, Project] = {}
        self.refusals: dict[tuple[object, ...], Decision] = {}
        """Requests that found no capacity, by shape.

        Further allocations keep them valid, so only freed capacity clears them.
        """
        self._placed: dict[str, NodeSlot] = {}
        self._labelled: dict[tuple[str, str], dict[str, NodeSlot]] = {}
        self._sites = Sites()
        self._hosts: dict[str, dict[str, NodeSlot]] = {}
        self._shapes: dict[tuple[int, int, int], tuple[int, int, int]] = {}
        for state in {state.node: state for state in nodes}.values():
            slot = self.slots[state.node] = NodeSlot(state.node)
            slot.know(state)
            self._sites.enter(slot)
            self._label(slot)
            self._house(slot)
        self._known = len(self.slots)
        self.particular = sum(slot.particular for slot in self.slots.values())
        """Number of nodes that accept only some machines."""
        self.unfenced = sum(slot.unfenced for slot in self.slots.values())
        """Number of nodes that cannot fence machines."""
        self.order = Order(slot for slot in self.slots.values() if slot.on_duty)

    def __len__(self) -> int:
        """Return the number of known nodes, on duty or not."""
        return self._known

    def known_nodes(self) -> Iterator[NodeSlot]:
        """Return the known nodes."""
        return (slot for slot in self.slots.values() if slot.state is not None)

    # Nodes

    def put_node(self, state: NodeState) -> None:
        """Add or update a node; its machines stay."""
        slot = self.slots.get(state.node) or self._slot(state.node)
        if slot.state != state:
            self._know(slot, state)

    def remove_node(self, node: str) -> None:
        """Remove a node. Machines with a command for it stay on it."""
        slot = self.slots.get(node)
        if slot is not None:
            self._know(slot, None)
            self._forget_if_bare(slot)

    # Machines

    def use(self, vm: str, node: str, wanted: PlacementRequest) -> None:
        """Put a machine on a node, and on no other: an earlier allocation is freed."""
        if vm != wanted.vm:
            raise Invalid(f"machine {vm!r}: was put on node {node!r} as {wanted.vm!r}; put each as itself")
        before = self._placed.get(vm)
        if before is not None:
            if before.node == node and before.vms[vm] == wanted:
                return
            self.free(vm)
        slot = self.slots.get(node) or self._slot(node)
        self._enter(slot, wanted)

    def free(self, vm: str) -> None:
        """Remove a machine from its node."""
        slot = self._placed.get(vm)
        if slot is not None:
            self._leave(vm, slot)
            self._forget_if_bare(slot)
            self.refusals.clear()

    def node_of(self, vm: str) -> str | None:
        """Return the node of a machine."""
        slot = self._placed.get(vm)
        return None if slot is None else slot.node

    def used(self, node: str) -> Capacity:
        """Return the allocations on a node."""
        specs = [wanted.spec for wanted in self.on(node).values()]
        return Capacity(
            cpus=sum(spec.cpus for spec in specs),
            memory_mib=sum(spec.memory_mib for spec in specs),
            disk_gib=sum(spec.disk_gib for spec in specs),
        )

    def on(self, node: str) -> Mapping[str, PlacementRequest]:
        """Return the machines on a node."""
        slot = self.slots.get(node)
        return {} if slot is None else slot.vms

    # For placement

    @contextmanager
    def without(self, vm: str) -> Iterator[None]:
        """Treat the machine as unplaced within this context."""
        slot = self._placed[vm]
        wanted = slot.vms[vm]
        kept = self.refusals
        self.refusals = {}
        self._leave(vm, slot)
        try:
            yield
        finally:
            self._enter(slot, wanted)
            self.refusals = kept

    def blocks(self, node_labels: Mapping[str, str]) -> list[Block]:
        """Return the nodes on duty, emptiest first; if one of these labels is rare, only the nodes that have it."""
        if not node_labels:
            return self.order.blocks
        having = min((self._labelled.get(pair, {}) for pair in node_labels.items()), key=len)
        if len(having) ** 2 > 4 * len(self.order):  # then sorting them takes longer than filtering all nodes
            return self.order.blocks
        return Order(slot for slot in having.values() if slot.on_duty).blocks

    def shape(self, cpus: int, memory: int, disk: int) -> tuple[int, int, int]:
        """Return the same object for the same shape."""
        wanted = (cpus, memory, disk)
        found = self._shapes.get(wanted)
        if found is None:
            if len(self._shapes) >= _REMEMBERED:
                self._shapes.clear()
            found = self._shapes[wanted] = wanted
        return found

    def remember(self, key: tuple[object, ...], decision: Decision) -> None:
        """Remember that this shape found no capacity."""
        if len(self.refusals) >= _REMEMBERED:
            self.refusals.clear()
        self.refusals[key] = decision

    # Updates

    def _slot(self, node: str) -> NodeSlot:
        """Create a slot for an unknown node."""
        slot = self.slots[node] = NodeSlot(node)
        self._sites.enter(slot)
        return slot

    def _know(self, slot: NodeSlot, state: NodeState | None) -> None:
        self.refusals.clear()
        for wanted in slot.vms.values():
            self._count_out(slot, wanted)
        if slot.on_duty:
            self.order.remove(slot)
        self._unlabel(slot)
        self._known += (state is not None) - (slot.state is not None)
        self.particular -= slot.particular
        self.unfenced -= slot.unfenced
        self._sites.leave(slot)
        self._unhouse(slot)
        slot.know(state)
        self._house(slot)
        self._sites.enter(slot)
        self.particular += slot.particular
        self.unfenced += slot.unfenced
        self._label(slot)
        if slot.on_duty:
            self.order.add(slot)
        for wanted in slot.vms.values():
            self._count_in(slot, wanted)

    def _enter(self, slot: NodeSlot, wanted: PlacementRequest) -> None:
        if slot.on_duty:
            self.order.remove(slot)
            slot.take(wanted.spec)
            self.order.add(slot)
        else:
            slot.take(wanted.spec)
        if slot.host:
            self._burden(slot, wanted.spec.cpus, wanted.spec.memory_mib)
        slot.vms[wanted.vm] = wanted
        self._placed[wanted.vm] = slot
        self._count_in(slot, wanted)

    def _leave(self, vm: str, slot: NodeSlot) -> None:
        wanted = slot.vms[vm]
        self._count_out(slot, wanted)
        del self._placed[vm], slot.vms[vm]
        if slot.on_duty:
            self.order.remove(slot)
            slot.give(wanted.spec)
            self.order.add(slot)
        else:
            slot.give(wanted.spec)
        if slot.host:
            self._burden(slot, -wanted.spec.cpus, -wanted.spec.memory_mib)

    # Nodes of one host: the machines of one also count against those that offer the whole host

    def _house(self, slot: NodeSlot) -> None:
        """Add a node to its host; it must not be in the order."""
        if slot.host:
            mates = self._hosts.setdefault(slot.host, {})
            self._share(slot, mates.values(), 1)
            mates[slot.node] = slot

    def _unhouse(self, slot: NodeSlot) -> None:
        if slot.host:
            mates = self._hosts[slot.host]
            del mates[slot.node]
            self._share(slot, mates.values(), -1)
            if not mates:
                del self._hosts[slot.host]

    def _share(self, slot: NodeSlot, mates: Iterable[NodeSlot], sign: int) -> None:
        own = self.used(slot.node)
        for mate in mates:
            theirs = self.used(mate.node)
            if slot.whole_host:
                slot.burden(sign * theirs.cpus, sign * theirs.memory_mib)
            self._burden_one(mate, sign * own.cpus, sign * own.memory_mib)

    def _burden(self, slot: NodeSlot, cpus: int, memory: int) -> None:
        mates = self._hosts[slot.host]
        if len(mates) > 1:
            for mate in mates.values():
                if mate is not slot:
                    self._burden_one(mate, cpus, memory)

    def _burden_one(self, mate: NodeSlot, cpus: int, memory: int) -> None:
        if not mate.whole_host or not (cpus or memory):
            return
        if mate.on_duty:
            self.order.remove(mate)
            mate.burden(cpus, memory)
            self.order.add(mate)
        else:
            mate.burden(cpus, memory)

    def _count_in(self, slot: NodeSlot, wanted: PlacementRequest) -> None:
        project = self.projects.get(wanted.project)
        if project is None:
            project = self.projects[wanted.project] = Project()
        project.add(wanted, slot)

    def _count_out(self, slot: NodeSlot, wanted: PlacementRequest) -> None:
        project = self.projects[wanted.project]
        project.remove(wanted, slot)
        if not project.all.vms:
            del self.projects[wanted.project]

    def _forget_if_bare(self, slot: NodeSlot) -> None:
        if slot.state is None and not slot.vms:
            self._unlabel(slot)
            self._sites.leave(slot)
            del self.slots[slot.node]

    def _label(self, slot: NodeSlot) -> None:
        for pair in slot.labels.items():
            self._labelled.setdefault(pair, {})[slot.node] = slot

    def _unlabel(self, slot: NodeSlot) -> None:
        for pair in slot.labels.items():
            having = self._labelled.get(pair, {})
            having.pop(slot.node, None)
            if not having:
                self._labelled.pop(pair, None)
