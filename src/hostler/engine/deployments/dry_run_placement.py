"""Simulates placement on a copy of the node cache, without any effect on the leader's decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.engine.deployments import node_cache as grounds
from hostler.engine.deployments import spread
from hostler.engine.deployments.instance_index import InstanceIndex
from hostler.engine.deployments.node_cache import has
from hostler.engine.deployments.plan import MOST, Placed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hostler.engine.deployments.node_cache import NodeCache
    from hostler.engine.view import View
    from hostler.model.deployment import SliceSpec
    from hostler.model.reason import Reason


class Placing:
    """One per plan, created once the slice cache is loaded. Earlier placements count for later ones."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._ground = copied(view, view.fleet.ground)

    def __call__(self, spec: SliceSpec, count: int, there: Mapping[str, int]) -> Placed:
        """Place instances, as specified by `plan.Place`."""
        roster = InstanceIndex()
        for node, instances in sorted(there.items()):
            roster.settle(node, self._ground.site(node).place, instances)
        retries = self._view.retries.get(artifact=spec.artifact)
        failed = {} if retries is None else retries.value.nodes
        choices = spread.assign(count, roster, self._ground, labels=spec.node_labels, failed=failed)
        chosen: dict[str, tuple[int, str]] = {}
        for choice in choices:
            before = chosen.get(choice.node)
            chosen[choice.node] = (1, choice.why) if before is None else (before[0] + 1, before[1])
        reasons: tuple[Reason, ...] = ()
        if len(choices) < count:
            reasons = spread.passed_over(list(chosen), roster, self._ground, labels=spec.node_labels, failed=failed)
        for node, (instances, _) in chosen.items():
            self._ground.add(node, instances)
        return Placed(
            nodes=tuple((node, instances, why) for node, (instances, why) in chosen.items()),
            passed_over=reasons,
            waiting=count - len(choices),
            room=self._room(spec, there) if count >= MOST else None,
        )

    def _room(self, spec: SliceSpec, there: Mapping[str, int]) -> int:
        """Return how many more instances of the slice all nodes together accept."""
        takes = (site.node for site in self._ground.sites.values() if not site.kind and has(site, spec.node_labels))
        return sum(max(0, spread.MOST - there.get(node, 0)) for node in takes)


def copied(view: View, ground: NodeCache) -> NodeCache:
    """Return a copy of the nodes, in the same order of choice, that follows no changes."""
    copy = grounds.NodeCache(view)
    same: dict[grounds.FailureDomain, grounds.FailureDomain] = {}
    for key, place in ground.places.items():
        same[place] = copy.places[key] = grounds.FailureDomain(place.order, place.rack, place.pdus, place.tors)
        copy.places[key].by_total = {total: dict(nodes) for total, nodes in place.by_total.items()}
        copy.places[key].others = place.others
    for node, site in ground.sites.items():
        other = copy.sites[node] = grounds.NodeSite(node, same[site.place])
        other.total, other.labels, other.leaves = site.total, site.labels, site.leaves
        other.kind, other.why = site.kind, site.why
    copy.objections = {kind: dict(nodes) for kind, nodes in ground.objections.items()}
    copy.leaving, copy.taking = dict(ground.leaving), ground.taking
    return copy
