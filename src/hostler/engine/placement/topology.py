"""Topology for scoring: domains that always occur together are counted as one.

If a rack has its own pdus and tor, machines that share one of them share all of them. Then a single count with the
combined weight is equivalent to one count each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from hostler.engine.placement.node_state import NodeSlot

Domains: TypeAlias = tuple[tuple[str, float], ...]
"""Racks, pdus and tors, each with its weight."""


class FailureDomains:
    """A set of domains that some nodes have in common."""

    __slots__ = ("counted", "domains", "nodes")

    def __init__(self, domains: Domains) -> None:
        self.domains, self.counted = domains, domains
        self.nodes = 0


class Sites:
    """The sites of a cluster."""

    def __init__(self) -> None:
        self._sites: dict[Domains, FailureDomains] = {}
        self._having: dict[str, dict[FailureDomains, None]] = {}

    def enter(self, slot: NodeSlot) -> None:
        """Add a node to the site of its domains."""
        domains = slot.domains[1:]  # the first is the node itself
        site = self._sites.get(domains)
        if site is None:
            site = self._sites[domains] = FailureDomains(domains)
            for domain, _ in domains:
                self._having.setdefault(domain, {})[site] = None
            self._count_anew(site)
        site.nodes += 1
        slot.site = site

    def leave(self, slot: NodeSlot) -> None:
        """Remove a node from its site, before its domains change or it is removed."""
        site = slot.site
        site.nodes -= 1
        if site.nodes:
            return
        del self._sites[site.domains]
        for domain, _ in site.domains:
            self._having[domain].pop(site, None)
        self._count_anew(site)
        for domain, _ in site.domains:
            if not self._having.get(domain, True):
                del self._having[domain]

    def _count_anew(self, changed: FailureDomains) -> None:
        """Recompute which domains occur at one site only."""
        touched = {site: None for domain, _ in changed.domains for site in self._having[domain]}
        for site in touched:
            alone = [(domain, weight) for domain, weight in site.domains if len(self._having[domain]) == 1]
            if len(alone) > 1:
                rest = tuple(one for one in site.domains if one not in alone)
                site.counted = ((alone[0][0], sum(weight for _, weight in alone)), *rest)
            else:
                site.counted = site.domains
