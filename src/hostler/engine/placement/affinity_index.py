"""Where the machines of a project stand: what rules and spread ask about."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostler.engine.placement.node_state import Slot
    from hostler.engine.placement.request import Wanted
    from hostler.model.vm import Affinity, Level

Selector: TypeAlias = frozenset[tuple[str, str]]
"""The labels that a machine must have to be meant."""

SELECTORS = 256
"""Those for which a project keeps tallies; the oldest goes first."""


class Tally:
    """Some machines, counted by each node, rack, pdu and tor."""

    __slots__ = ("counts", "unknown", "vms")

    def __init__(self) -> None:
        self.vms: dict[str, Slot] = {}
        self.counts: dict[str, int] = {}
        self.unknown: dict[Level, int] = {}
        """By level, how many stand on a node of which it is not known."""

    def add(self, vm: str, slot: Slot) -> None:
        """Count it in."""
        self.vms[vm] = slot
        counts = self.counts
        for domain, _ in slot.domains:
            counts[domain] = counts.get(domain, 0) + 1
        for level in slot.unknown:
            self.unknown[level] = self.unknown.get(level, 0) + 1

    def remove(self, vm: str, slot: Slot) -> None:
        """Count it out; it must be in."""
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
    """The machines of one project that have a node."""

    def __init__(self) -> None:
        self.all = Tally()
        self.guards: dict[tuple[Selector, Level], Tally] = {}
        """Those that must be apart from machines with these labels: a newcomer with them has to keep away, too."""
        self._tallies: dict[Selector, Tally] = {}

    def add(self, wanted: Wanted, slot: Slot) -> None:
        """A machine has a node."""
        self.all.add(wanted.vm, slot)
        for selector, tally in self._tallies.items():
            if wanted.labels.items() >= selector:
                tally.add(wanted.vm, slot)
        for key in _guarded(wanted) if wanted.affinity else ():
            self.guards.setdefault(key, Tally()).add(wanted.vm, slot)

    def remove(self, wanted: Wanted, slot: Slot) -> None:
        """It has none any more."""
        self.all.remove(wanted.vm, slot)
        for selector, tally in self._tallies.items():
            if wanted.labels.items() >= selector:
                tally.remove(wanted.vm, slot)
        for key in _guarded(wanted) if wanted.affinity else ():
            self.guards[key].remove(wanted.vm, slot)
            if not self.guards[key].vms:
                del self.guards[key]

    def with_labels(self, labels: Mapping[str, str]) -> Tally:
        """Those that have all of these. Counted at the first question, then kept."""
        selector = selector_of(labels)
        if not selector:
            return self.all
        tally = self._tallies.get(selector)
        if tally is None:
            tally = Tally()
            for vm, slot in self.all.vms.items():
                if slot.vms[vm].labels.items() >= selector:
                    tally.add(vm, slot)
            if len(self._tallies) >= SELECTORS:
                del self._tallies[next(iter(self._tallies))]
            self._tallies[selector] = tally
        return tally


def selector_of(labels: Mapping[str, str]) -> Selector:
    """Labels as something to look up."""
    return frozenset(labels.items())


def _guarded(wanted: Wanted) -> set[tuple[Selector, Level]]:
    return {(selector_of(rule.labels), rule.level) for rule in wanted.affinity if guards(rule)}


def guards(rule: Affinity) -> bool:
    """Whether newcomers have to keep away."""
    return rule.required and not rule.together
