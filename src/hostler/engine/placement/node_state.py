"""One node, with its free capacity and what it shares with others.

For the score, domains that always occur together are counted as one. If a rack has its own pdus and tor, machines that
share one of them share all of them. Then a single count with the combined weight is equivalent to one count each.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, TypeAlias
from zlib import crc32

from hostler.model.vm import Level

if TYPE_CHECKING:
    from hostler.engine.placement.request import NodeState, PlacementRequest
    from hostler.model.vm import VmSpec


Position: TypeAlias = int
"""Position of a node in the order: its load, then a hash of its name, so that neighbours are mixed.

Both are in one number, because it is compared more often than anything else. The hash is long enough to be unique.
"""
_FULL = 1 << 53

WEIGHTS = {Level.NODE: 0.4, Level.RACK: 0.3, Level.PDU: 0.15, Level.TOR: 0.15}
"""Weight of a shared level against spread."""


class FailureDomains:
    """A set of domains that some nodes have in common."""

    __slots__ = ("counted", "domains", "nodes")

    def __init__(self, domains: Domains) -> None:
        self.domains, self.counted = domains, domains
        self.nodes = 0


_NOWHERE = FailureDomains(())


class NodeSlot:
    """A node. Without `state` it is unknown (yet, or no longer), but has machines.

    `cpus`, `memory` and `disk` are the free amounts; negative if more is allocated than it has. `fit` caches the last
    score: a shape, and the share that stays free with it.
    """

    __slots__ = (
        "at",
        "capacity",
        "cpus",
        "disk",
        "domains",
        "fit",
        "host",
        "labels",
        "memory",
        "node",
        "on_duty",
        "own",
        "particular",
        "position",
        "rack",
        "salt",
        "site",
        "state",
        "tie",
        "unfenced",
        "unknown",
        "vms",
        "whole_host",
    )

    def __init__(self, node: str) -> None:
        self.node = node
        self.own = f"{Level.NODE} {node}"
        """The node as a domain."""
        self.salt = node.encode()
        self.tie = crc32(self.salt) << 64 | int.from_bytes(blake2b(self.salt, digest_size=8).digest())
        self.site = _NOWHERE
        self.vms: dict[str, PlacementRequest] = {}
        self.cpus = self.memory = self.disk = 0
        self.capacity = (0, 0, 0)
        self.position: Position = 0
        self.fit: tuple[object, float] = (None, 0.0)
        self.know(None)

    def know(self, state: NodeState | None) -> None:
        """Set what is known of the node."""
        before = self.capacity
        self.state = state
        self.capacity = (0, 0, 0)
        self.rack: str | None = None
        self.labels: dict[str, str] = {"node": self.node}
        self.on_duty = state is not None and state.on_duty
        self.particular = state is not None and (state.images is not None or bool(state.refuses))
        """Not every machine that fits is accepted."""
        self.unfenced = state is not None and not state.fences
        self.host = "" if state is None else state.host
        self.whole_host = state is not None and state.whole_host
        rack: tuple[str, ...] = ()
        pdus: tuple[str, ...] = ()
        tors: tuple[str, ...] = ()
        if state is not None:
            self.capacity = (state.capacity.cpus, state.capacity.memory_mib, state.capacity.disk_gib)
            self.rack = state.rack
            rack = () if state.rack is None else (state.rack,)
            self.labels = {**state.labels, **({} if state.rack is None else {"rack": state.rack}), "node": self.node}
            pdus, tors = tuple(dict.fromkeys(state.pdus)), tuple(dict.fromkeys(state.tors))
        self.cpus += self.capacity[0] - before[0]
        self.memory += self.capacity[1] - before[1]
        self.disk += self.capacity[2] - before[2]
        names = {Level.NODE: (self.node,), Level.RACK: rack, Level.PDU: pdus, Level.TOR: tors}
        self.at = {level: tuple(f"{level} {name}" for name in names[level]) for level in names}
        """By level, the domains of the node; empty: unknown."""
        self.domains = tuple((name, WEIGHTS[level] / len(all_)) for level, all_ in self.at.items() for name in all_)
        self.unknown = tuple(level for level, all_ in self.at.items() if not all_)
        self.locate()

    def burden(self, cpus: int, memory: int) -> None:
        """Reduce the free amounts by machines on other nodes of the same host. Each node has its own disks."""
        self.cpus -= cpus
        self.memory -= memory
        self.locate()

    def take(self, spec: VmSpec) -> None:
        """Allocate a machine."""
        self.cpus -= spec.cpus
        self.memory -= spec.memory_mib
        self.disk -= spec.disk_gib
        self.locate()

    def give(self, spec: VmSpec) -> None:
        """Free a machine."""
        self.cpus += spec.cpus
        self.memory += spec.memory_mib
        self.disk += spec.disk_gib
        self.locate()

    def locate(self) -> None:
        """Compute the position in the order, from the scarcest resource."""
        cpus, memory, disk = self.capacity
        load = 1.0 - self.cpus / cpus if cpus else 1.0
        other = 1.0 - self.memory / memory if memory else 1.0
        if other > load:  # noqa: PLR1730 - max() takes twice as long
            load = other
        if disk:
            other = 1.0 - self.disk / disk
            if other > load:  # noqa: PLR1730
                load = other
        self.position = int(load * _FULL) << 96 | self.tie
        self.fit = (None, 0.0)


Domains: TypeAlias = tuple[tuple[str, float], ...]
"""Racks, pdus and tors, each with its weight."""


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
