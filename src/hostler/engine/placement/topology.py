"""What nodes hang on, as far as scoring asks: things that are always met together are counted as one.

Where a rack has pdus and a tor of its own, whoever shares one of them with a machine shares all of them. Then one
count, with the weight of all, says the same as each of theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from hostler.engine.placement.node_state import Slot

Domains: TypeAlias = tuple[tuple[str, float], ...]
"""Racks, pdus and tors, each with its weight."""


class Site:
    """What some nodes hang on, each on all of it."""

    __slots__ = ("counted", "domains", "nodes")

    def __init__(self, domains: Domains) -> None:
        self.domains, self.counted = domains, domains
        self.nodes = 0


class Sites:
    """The sites of a cluster."""

    def __init__(self) -> None:
        self._sites: dict[Domains, Site] = {}
        self._having: dict[str, dict[Site, None]] = {}

    def enter(self, slot: Slot) -> None:
        """A node hangs on what its domains say."""
        domains = slot.domains[1:]  # the first is the node itself
        site = self._sites.get(domains)
        if site is None:
            site = self._sites[domains] = Site(domains)
            for domain, _ in domains:
                self._having.setdefault(domain, {})[site] = None
            self._count_anew(site)
        site.nodes += 1
        slot.site = site

    def leave(self, slot: Slot) -> None:
        """It is about to hang on something else, or is no more."""
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

    def _count_anew(self, changed: Site) -> None:
        """What is met at one site only may have become more, or less."""
        touched = {site: None for domain, _ in changed.domains for site in self._having[domain]}
        for site in touched:
            alone = [(domain, weight) for domain, weight in site.domains if len(self._having[domain]) == 1]
            if len(alone) > 1:
                rest = tuple(one for one in site.domains if one not in alone)
                site.counted = ((alone[0][0], sum(weight for _, weight in alone)), *rest)
            else:
                site.counted = site.domains
