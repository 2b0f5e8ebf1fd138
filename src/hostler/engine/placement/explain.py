"""Explanation of the placement verdict for each node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.engine.placement import reason_text
from hostler.engine.placement.constraints import Demand
from hostler.engine.placement.score import ranked
from hostler.model.api import NodeVerdict

if TYPE_CHECKING:
    from hostler.engine.placement.cluster import Cluster
    from hostler.engine.placement.request import PlacementRequest


def judge(wanted: PlacementRequest, cluster: Cluster, *, limit: int = 1000) -> tuple[NodeVerdict, ...]:
    """Return a verdict per node, with every reason: suitable nodes, best first, then those with the fewest objections.

    A placed machine is judged as if it were unplaced. Takes time proportional to the number of nodes.
    """
    if cluster.node_of(wanted.vm) is not None:
        with cluster.without(wanted.vm):
            return _judge(wanted, cluster, limit)
    return _judge(wanted, cluster, limit)


def objections(wanted: PlacementRequest, cluster: Cluster, node: str) -> tuple[str, ...]:
    """Return all objections to this node; empty: it is suitable. A placed machine is judged as if it were unplaced."""
    if cluster.node_of(wanted.vm) is not None:
        with cluster.without(wanted.vm):
            return _objections(wanted, cluster, node)
    return _objections(wanted, cluster, node)


def _objections(wanted: PlacementRequest, cluster: Cluster, node: str) -> tuple[str, ...]:
    slot = cluster.slots.get(node)
    if slot is None or slot.state is None:
        return ("there is no such node",)
    return tuple(reason_text.against(Demand(wanted, cluster), slot))


def _judge(wanted: PlacementRequest, cluster: Cluster, limit: int) -> tuple[NodeVerdict, ...]:
    demand = Demand(wanted, cluster)
    fitting = [slot for slot in cluster.order if not demand.missing(slot) and demand.refused_by(slot) is None]
    verdicts = [
        NodeVerdict(node=one[3].node, fits=True, score=one[0], reasons=tuple(reason_text.in_favour(demand, one)))
        for one in ranked(demand, fitting)[:limit]
    ]
    if len(verdicts) < limit:
        will_do = {slot.node for slot in fitting}
        refused = [
            (slot.node, reason_text.against(demand, slot)) for slot in cluster.known() if slot.node not in will_do
        ]
        refused.sort(key=lambda one: (len(one[1]), one[0]))
        verdicts += [
            NodeVerdict(node=node, fits=False, score=0.0, reasons=tuple(reasons))
            for node, reasons in refused[: limit - len(verdicts)]
        ]
    return tuple(verdicts)
