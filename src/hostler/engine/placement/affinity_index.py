"""Index of the machines of a project by location, for affinity rules and spread."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostler.engine.placement.node_state import NodeSlot
    from hostler.engine.placement.request import PlacementRequest
    from hostler.model.vm import Affinity, Level

Selector: TypeAlias = frozenset[tuple[str, str]]
"""Labels that a machine must have to match."""

SELECTORS = 256
"""Number of selectors for which a project keeps tallies; the oldest is dropped first."""


class AffinityCounts:
    """A set of machines, counted per node, rack, pdu and tor."""

    __slots__ = ("counts", "unknown", "vms")

    def __init__(self) -> None:
        self.vms: dict[str, NodeSlot] = {}
        self.counts: dict[str, int] = {}
        self.unknown: dict[Level, int] = {}
        """Number of machines, by level, on nodes whose rack, pdu or tor is unknown."""

    def add(self, vm: str, slot: NodeSlot) -> None:
        """Add a machine."""
        self.vms[vm] = slot
        counts = self.counts
        for domain, _ in slot.domains:
            counts[domain] = counts.get(domain, 0) + 1
        for level in slot.unknown:
            self.unknown[level] = self.unknown.get(level, 0) + 1

    def remove(self, vm: str, slot: NodeSlot) -> None:
        """Remove a machine, which must be present."""
        del self.vms[vm]
        counts = self.counts
        for domain, _ in slot.domains:
            if counts[domain] == 1:
                del counts[domain]
            else:
                counts[domain] -= 1
        for level in slot.unknown:
            if self.unknown[level] == 1:
                del self.unknown[level]
            else:
                self.unknown[level] -= 1


class Project:
    """The placed machines of one project."""

    def __init__(self) -> None:
        self.all = AffinityCounts()
        self.guards: dict[tuple[Selector, Level], AffinityCounts] = {}
        """Machines with anti-affinity to these labels: a new machine with the labels must avoid them, too."""
        self._tallies: dict[Selector, AffinityCounts] = {}

    def add(self, wanted: PlacementRequest, slot: NodeSlot) -> None:
        """Add a placed machine."""
        self.all.add(wanted.vm, slot)
        for selector, tally in self._tallies.items():
            if wanted.labels.items() >= selector:
                tally.add(wanted.vm, slot)
        for key in _guarded(wanted) if wanted.affinity else ():
            self.guards.setdefault(key, AffinityCounts()).add(wanted.vm, slot)

    def remove(self, wanted: PlacementRequest, slot: NodeSlot) -> None:
        """Remove a machine."""
        self.all.remove(wanted.vm, slot)
        for selector, tally in self._tallies.items():
            if wanted.labels.items() >= selector:
                tally.remove(wanted.vm, slot)
        for key in _guarded(wanted) if wanted.affinity else ():
            self.guards[key].remove(wanted.vm, slot)
            if not self.guards[key].vms:
                del self.guards[key]

    def with_labels(self, labels: Mapping[str, str]) -> AffinityCounts:
        """Return the machines that have all of these labels. Counted at the first query, then kept."""
        selector = selector_of(labels)
        if not selector:
            return self.all
        tally = self._tallies.get(selector)
        if tally is None:
            tally = AffinityCounts()
            for vm, slot in self.all.vms.items():
                if slot.vms[vm].labels.items() >= selector:
                    tally.add(vm, slot)
            if len(self._tallies) >= SELECTORS:
                del self._tallies[next(iter(self._tallies))]
            self._tallies[selector] = tally
        return tally


def selector_of(labels: Mapping[str, str]) -> Selector:
    """Return labels as a hashable value."""
    return frozenset(labels.items())


def _guarded(wanted: PlacementRequest) -> set[tuple[Selector, Level]]:
    return {(selector_of(rule.labels), rule.level) for rule in wanted.affinity if guards(rule)}


def guards(rule: Affinity) -> bool:
    """Return whether new machines must avoid the owner of this rule."""
    return rule.required and not rule.together
