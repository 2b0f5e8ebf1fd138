"""Cache of the nodes that can run slices, by location and number of instances, updated as they change.

Nodes on the same rack, PDUs and ToR switches form one `FailureDomain`. The cost of finding the next node depends on the
number of domains, not on the number of nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.keys.families import ALIVE, MEMBER
from hostler.model.name import fold
from hostler.model.node import Lifecycle

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hostler.engine.inventory.topology_cache import Wiring
    from hostler.engine.view import View
    from hostler.model.node import NodeRecord

LEAVES = (Lifecycle.DRAINING, Lifecycle.DECOMMISSIONED)
SILENT, UNKNOWN = "silent", "unknown"
_LIFE = {
    Lifecycle.JOINING: "it is still joining",
    Lifecycle.DRAINING: "it is being drained",
    Lifecycle.DECOMMISSIONED: "it is decommissioned",
    Lifecycle.SHUTTING_DOWN: "it is shutting down",
}
_KINDS = {
    UNKNOWN: "they are not registered",
    SILENT: "they are unreachable",
    Lifecycle.JOINING: "they are still joining",
    Lifecycle.DRAINING: "they are being drained",
    Lifecycle.DECOMMISSIONED: "they are decommissioned",
    Lifecycle.SHUTTING_DOWN: "they are shutting down",
    "inventory": "the inventory excludes them",
}


class FailureDomain:
    """A location: nodes that fail together because they share rack, PDUs and ToR switches."""

    __slots__ = ("by_total", "order", "others", "pdus", "rack", "tors")

    def __init__(self, order: int, rack: str, pdus: tuple[str, ...], tors: tuple[str, ...]) -> None:
        self.order, self.rack, self.pdus, self.tors = order, rack, pdus, tors
        self.by_total: dict[int, dict[str, None]] = {}
        """Nodes that accept slices, by their number of instances of any slice, in order of insertion."""
        self.others = 0
        """Number of nodes that accept no slices."""

    def free(self, levels: Mapping[int, Mapping[str, None]]) -> bool:
        """Return whether a node that accepts slices may have none of the slice with these `Roster.levels`."""
        there = sum(map(len, self.by_total.values())) + self.others
        return there > sum(map(len, levels.values()))


class NodeSite:
    """State of one node."""

    __slots__ = ("kind", "labels", "leaves", "node", "place", "total", "why")

    def __init__(self, node: str, place: FailureDomain) -> None:
        self.node, self.place = node, place
        self.total = 0
        """Instances on the node, including those that are about to be assigned to it."""
        self.labels: Mapping[str, str] = {}
        self.kind, self.why = UNKNOWN, "it is not registered"
        """Why it accepts no slices, as a kind and as text; empty: it accepts slices."""
        self.leaves = False
        """The node is alive, and its instances must move to other nodes."""


class NodeCache:
    """All nodes. Follows the view once `follow` was called."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.sites: dict[str, NodeSite] = {}
        self.places: dict[tuple[str, tuple[str, ...], tuple[str, ...]], FailureDomain] = {}
        self.objections: dict[str, dict[str, None]] = {}
        """Nodes that accept no slices, by the kind of reason."""
        self.leaving: dict[str, None] = {}
        self.relabelled = 0
        """Number of changes to labels of nodes."""
        self.taking = 0
        """Number of nodes that accept slices."""
        self.moved: Callable[[str, FailureDomain], None] = lambda _node, _before: None
        """Called when a node's location has changed, with the previous location."""
        self._listeners: list[Callable[[str], None]] = []

    def follow(self) -> None:
        """Follow changes of all nodes from now on."""
        self._view.members.listen(lambda key: self.look(MEMBER.parse(key)["node"]))
        self._view.alive.listen(lambda key: self.look(ALIVE.parse(key)["node"]))
        self._view.inventory.listen(self.look)

    def listen(self, changed: Callable[[str], None]) -> Callable[[], None]:
        """Call `changed(node)` when a node starts or stops accepting slices or being drained, or its labels change.

        Return a function that ends this.
        """
        self._listeners = [*self._listeners, changed]

        def end() -> None:
            self._listeners = [other for other in self._listeners if other is not changed]

        return end

    def site(self, node: str) -> NodeSite:
        """Return the state of a node; an unknown node is added."""
        site = self.sites.get(node)
        if site is None:
            site = self.sites[node] = NodeSite(node, self._place("", (), ()))
            site.place.others += 1
            self.objections.setdefault(site.kind, {})[node] = None
        return site

    def is_alive(self, node: str) -> bool:
        """Return whether the node's lease is alive."""
        return self._view.alive.get(node=node) is not None

    def add(self, node: str, instances: int) -> None:
        """Add `instances` (possibly negative) to the number of instances on the node."""
        site = self.site(node)
        if not site.kind:
            self._leave(site)
        site.total += instances
        if not site.kind:
            site.place.by_total.setdefault(site.total, {})[node] = None

    def look(self, node: str) -> None:
        """Update a node from the view."""
        view, member = self._view, self._view.members.get(node=node)
        self.know(
            node,
            None if member is None else member.value,
            alive=self.is_alive(node),
            objection=view.inventory.objection(node),
            wiring=view.inventory.wiring(node),
        )

    def know(
        self, node: str, record: NodeRecord | None, *, alive: bool, objection: str = "", wiring: Wiring | None = None
    ) -> None:
        """Update a node from these records."""
        site = self.site(node)
        kind, why = _objection(record, alive, objection)
        leaves = alive and record is not None and record.lifecycle in LEAVES
        before = site.place
        place = self._hangs(record, wiring)
        news = (kind == "") != (site.kind == "") or leaves != site.leaves
        if not site.kind:
            self._leave(site)
            self.taking -= 1
        else:
            self.objections[site.kind].pop(node, None)
            before.others -= 1
        site.kind, site.why, site.leaves, site.place = kind, why, leaves, place
        labels = {} if record is None else record.labels
        if labels != site.labels:
            site.labels = labels
            self.relabelled += 1
            news = True
        if not kind:
            place.by_total.setdefault(site.total, {})[node] = None
            self.taking += 1
        else:
            self.objections.setdefault(kind, {})[node] = None
            place.others += 1
        if leaves:
            self.leaving[node] = None
        else:
            self.leaving.pop(node, None)
        if place is not before:
            self.moved(node, before)
        if news:
            for changed in self._listeners:
                changed(node)

    def takes(self, labels: Mapping[str, str]) -> bool:
        """Return whether any node accepts a slice that requires these labels."""
        if not labels:
            return self.taking > 0
        return any(not site.kind and has(site, labels) for site in self.sites.values())

    def said(self, kind: str) -> str:
        """Return why the nodes of this kind accept no slices."""
        return _KINDS.get(kind, kind)

    # Internal

    def _leave(self, site: NodeSite) -> None:
        same = site.place.by_total[site.total]
        del same[site.node]
        if not same:
            del site.place.by_total[site.total]

    def _hangs(self, record: NodeRecord | None, wiring: Wiring | None) -> FailureDomain:
        if wiring is not None:
            return self._place(*wiring)
        if record is None:
            return self._place("", (), ())
        return self._place(fold(record.rack or ""), record.pdus, record.tors)

    def _place(self, rack: str, pdus: tuple[str, ...], tors: tuple[str, ...]) -> FailureDomain:
        place = self.places.get((rack, pdus, tors))
        if place is None:
            place = self.places[rack, pdus, tors] = FailureDomain(len(self.places), rack, pdus, tors)
        return place


def has(site: NodeSite, labels: Mapping[str, str]) -> bool:
    """Return whether the node has all of these labels."""
    return all(site.labels.get(name) == value for name, value in labels.items())


def _objection(record: NodeRecord | None, alive: bool, objection: str) -> tuple[str, str]:
    """Return why a node accepts no slices, as a kind and as text; empty: it accepts them."""
    if record is None:
        return UNKNOWN, "it is not registered"
    if not alive:
        return SILENT, "it is unreachable"
    if record.lifecycle is not Lifecycle.ON_DUTY:
        return record.lifecycle, _LIFE.get(record.lifecycle, f"its lifecycle is {record.lifecycle.words}")
    return ("inventory", objection) if objection else ("", "")
