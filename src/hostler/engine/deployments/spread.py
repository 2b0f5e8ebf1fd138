"""Chooses nodes for new instances of a slice: evenly spread, so that a failure affects few of them. Pure.

Criteria, in this order: nodes where the slice did not fail recently, up to twice their even share; fewest instances of
the slice on the node; fewest of this version, because the others will be removed; fewest of the slice in the rack, on
the PDUs, on the ToR switches; fewest slices on the node in total; the node that has been without one for longest. Each
choice has a reason, and so does each node that was not chosen.
"""

from __future__ import annotations

import heapq
import itertools
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.deployments.node_cache import has
from hostler.kit.plural import counted
from hostler.model.trace import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hostler.engine.deployments.instance_index import InstanceIndex
    from hostler.engine.deployments.node_cache import FailureDomain, NodeCache, NodeSite

CHUNK = 256
"""Nodes that are sorted by their total number of slices, if they are equal otherwise."""
NAMED = 50
"""Nodes that are listed individually, each with the reason why it was not chosen."""
MOST = 5_000
"""Instances of a slice on one node: its key must fit into a transaction."""
TILT = 2
"""Multiple of its even share that a node may get because the slice failed on other nodes. Half of the nodes may be
broken; if the slice failed on more, the nodes are hardly the cause."""


class Choice(msgspec.Struct, frozen=True, gc=False):
    """The node for one instance, and the reason."""

    node: str
    why: str


def assign(
    count: int,
    roster: InstanceIndex,
    ground: NodeCache,
    *,
    labels: Mapping[str, str],
    failed: Mapping[str, int],
    barred: Callable[[str], bool] = lambda _: False,
    same: Callable[[str], int] = lambda _: 0,
) -> list[Choice]:
    """Return a node for each of `count` instances; fewer if no node accepts more.

    `failed`: nodes where it failed recently, and how often; they come last. `barred`: nodes that cannot be written to.
    `same`: the number of instances of this version on a node.
    """
    if count <= 0:
        return []
    plan = _Plan(roster, ground, same)

    def takes(site: NodeSite) -> bool:
        return (not labels or has(site, labels)) and not barred(site.node)

    if not failed:
        return plan.take(count, takes, MOST)
    nodes = sum(1 for site in ground.sites.values() if not site.kind and takes(site))
    share = -(-(count + sum(roster.on.values())) // max(1, nodes))
    found: list[Choice] = []
    for times in (0, *sorted(set(failed.values()))):
        of_turn: Callable[[NodeSite], bool] = lambda site, n=times: failed.get(site.node, 0) == n and takes(site)  # type: ignore[misc]  # noqa: E731
        found += plan.take(count - len(found), of_turn, min(MOST, TILT * share))
    return found


def passed_over(
    chosen: Sequence[str],
    roster: InstanceIndex,
    ground: NodeCache,
    *,
    labels: Mapping[str, str],
    failed: Mapping[str, int],
    barred: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Reason, ...]:
    """Return why other nodes were not chosen: one by one if they are few, otherwise by kind. `barred`: more reasons."""
    reasons: list[Reason] = []
    for kind, nodes in ground.objections.items():
        if not nodes:
            continue
        if len(nodes) <= NAMED:
            reasons += (Reason(subject=node, why=ground.sites[node].why) for node in nodes)
        else:
            reasons.append(Reason(subject=_some(nodes, len(nodes)), why=ground.said(kind)))
    used = dict.fromkeys(chosen)
    left = ground.taking - sum(1 for node in used if not ground.sites[node].kind)
    if left <= 0:
        return tuple(reasons)
    if left <= NAMED:
        for place in ground.places.values():
            for node in itertools.chain.from_iterable(place.by_total.values()):
                if node not in used:
                    why = barred.get(node) or _against(ground.sites[node], roster, labels, failed)
                    reasons.append(Reason(subject=node, why=why))
    else:
        others = counted(left, "other node")
        if labels:
            wanted = ", ".join(f"{name}={value}" for name, value in labels.items())
            others_why = f"they lack {wanted}, or have no fewer instances on the node, in the rack, on PDU and ToR"
        else:
            others_why = (
                "they have no fewer instances on the node, in the rack, on PDU and ToR, or more slices in total"
            )
        reasons.append(Reason(subject=others, why=others_why))
        reasons += (Reason(subject=node, why=why) for node, why in itertools.islice(barred.items(), NAMED))
        reasons += (
            Reason(subject=node, why=_failed(times))
            for node, times in itertools.islice(failed.items(), NAMED)
            if node not in used
        )
    return tuple(reasons)


def _against(site: NodeSite, roster: InstanceIndex, labels: Mapping[str, str], failed: Mapping[str, int]) -> str:
    if not has(site, labels):
        wanted = ", ".join(f"{name}={value}" for name, value in labels.items())
        return f"it lacks {wanted}"
    if site.node in failed:
        return _failed(failed[site.node])
    here = roster.on.get(site.node, 0)
    if here >= MOST:
        return f"it has {here} instances of it, and no node gets more than {MOST}"
    rack = f", {roster.racks.get(site.place.rack, 0)} in its rack" if site.place.rack else ""
    return f"others had fewer: it has {here}{rack}, and {counted(site.total, 'slice')} in total"


def _failed(times: int) -> str:
    return f"the slice failed there {counted(times, 'time')} recently"


def _some(nodes: Mapping[str, None], count: int) -> str:
    first = ", ".join(itertools.islice(nodes, 3))
    return f"{counted(count, 'node')} ({first}, …)"


class _Plan:
    """Chooses nodes one after another. The cost depends on the number of locations; nodes are examined when needed."""

    def __init__(self, roster: InstanceIndex, ground: NodeCache, same: Callable[[str], int]) -> None:
        self._roster, self._ground, self._same = roster, ground, same
        self._racks, self._pdus, self._tors = dict(roster.racks), dict(roster.pdus), dict(roster.tors)

    def take(self, count: int, takes: Callable[[NodeSite], bool], most: int) -> list[Choice]:
        """Choose a node for each of `count` instances, among those that `takes` accepts; none gets more than `most`.

        Choices of earlier calls count for racks, PDUs and ToR switches, but not per node: later calls use other nodes.
        """
        ground, found = self._ground, list[Choice]()
        if count <= 0:
            return found
        places = (place for place in ground.places.values() if place.by_total)
        lines = (_Line(place, self._roster, ground.sites, takes, self._same, most) for place in places)
        heap = [(self._key(line), line.place.order, line) for line in lines]
        heapq.heapify(heap)
        while len(found) < count and heap:
            key, order, line = heap[0]
            if not line.begin():
                heapq.heappop(heap)
                continue
            now = self._key(line)
            if now > key:  # the key was an estimate, or another node on the same PDU or ToR was chosen since
                heapq.heapreplace(heap, (now, order, line))
                continue
            place = line.place
            found.append(Choice(line.node, _why(place, key)))
            if place.rack:
                self._racks[place.rack] = self._racks.get(place.rack, 0) + 1
            for pdu in place.pdus:
                self._pdus[pdu] = self._pdus.get(pdu, 0) + 1
            for tor in place.tors:
                self._tors[tor] = self._tors.get(tor, 0) + 1
            line.chosen()
            heapq.heapreplace(heap, (self._key(line), order, line))
        return found

    def _key(self, line: _Line) -> tuple[int, int, int, int, int, int]:
        place = line.place
        pdus, tors = self._pdus, self._tors
        return (
            line.level,
            line.same,
            self._racks.get(place.rack, 0),
            sum([pdus.get(pdu, 0) for pdu in place.pdus]),
            sum([tors.get(tor, 0) for tor in place.tors]),
            line.total,
        )


def _why(place: FailureDomain, key: tuple[int, int, int, int, int, int]) -> str:
    level, _, rack, _, _, _ = key
    return f"{level} on this node, {rack} in rack {place.rack}" if place.rack else f"{level} on this node"


class _Line:
    """The nodes of one location, in the order of choice. `node` is the next one once `begin` was called; empty: none.

    Before that, `level`, `same` and `total` are lower bounds for the next node: most locations are never examined.
    """

    __slots__ = (
        *("_chosen", "_levels", "_more", "_most", "_roster", "_same", "_sites", "_takes", "_turns"),
        *("level", "node", "place", "same", "total"),
    )

    def __init__(  # noqa: PLR0917  (the location, its status, and the filters)
        self,
        place: FailureDomain,
        roster: InstanceIndex,
        sites: Mapping[str, NodeSite],
        takes: Callable[[NodeSite], bool],
        same: Callable[[str], int],
        most: int,
    ) -> None:
        self.place, self._roster, self._sites, self._takes, self._same = place, roster, sites, takes, same
        self._most = most
        self._more: dict[str, int] = {}  # chosen in this plan, by node
        self._levels = roster.levels.get(place, {})
        self._chosen: dict[int, list[str]] = {}  # nodes chosen in this plan, by the number of instances they then have
        self.level = 0 if place.free(self._levels) else min(self._levels)
        self.same, self.total, self.node = 0, min(place.by_total), ""
        self._turns: Iterator[tuple[int, int, int, str]] | None = None

    def begin(self) -> bool:
        """Find the first node, unless that was done already; return whether there is one."""
        if self._turns is None:
            self._turns = self._walk()
            self._next()
        return bool(self.node)

    def chosen(self) -> None:
        """Record that the current node was chosen, and advance to the next one."""
        self._chosen.setdefault(self.level + 1, []).append(self.node)
        self._more[self.node] = self._more.get(self.node, 0) + 1
        self._next()

    def _next(self) -> None:
        if self._turns is not None:
            self.level, self.same, self.total, self.node = next(self._turns, (0, 0, 0, ""))

    def _walk(self) -> Iterator[tuple[int, int, int, str]]:
        sites, on, takes, same, more = self._sites, self._roster.on, self._takes, self._same, self._more
        for total in sorted(self.place.by_total) if self.level == 0 else ():
            for node in tuple(self.place.by_total[total]):
                if node not in on and takes(sites[node]):
                    yield 0, 0, total, node
        level = 0
        while True:
            level = min((other for other in (*self._levels, *self._chosen) if other > level), default=0)
            if not level or level >= self._most:
                return
            picked = self._chosen.pop(level, ())
            stored = (
                node for node in tuple(self._levels.get(level, ())) if not (site := sites[node]).kind and takes(site)
            )
            nodes = itertools.chain(stored, picked)
            while chunk := sorted(
                (same(node) + more.get(node, 0), sites[node].total, at, node)
                for at, node in enumerate(itertools.islice(nodes, CHUNK))
            ):
                for alike, total, _, node in chunk:
                    yield level, alike, total, node
