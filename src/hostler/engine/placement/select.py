"""Selection of a node."""

from __future__ import annotations

from heapq import nsmallest
from itertools import compress
from typing import TYPE_CHECKING

from msgspec import Struct

from hostler.engine.placement import explain
from hostler.engine.placement.constraints import Demand
from hostler.engine.placement.node_order import NAMES, Walk
from hostler.engine.placement.request import Decision
from hostler.engine.placement.score import rank
from hostler.model.trace import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hostler.engine.placement.cluster import Cluster
    from hostler.engine.placement.node_state import NodeSlot
    from hostler.engine.placement.request import PlacementRequest
    from hostler.engine.placement.score import Scored

SMALL = 32
"""Largest cluster in which each node is checked and gets its own reason."""
RUNNERS_UP = 3
"""Number of runners-up that are named, in larger clusters."""
_GROUPS = 10
_TOLD = 3


def place(wanted: PlacementRequest, cluster: Cluster) -> Decision:
    """Choose a node for a machine; None exactly if no node is suitable.

    The cluster is unchanged: call `use` to allocate.

    A placed machine is placed as if it were unplaced.
    """
    if cluster.node_of(wanted.vm) is not None:
        with cluster.without(wanted.vm):
            return _decide(wanted, cluster)
    return _decide(wanted, cluster)


def _decide(wanted: PlacementRequest, cluster: Cluster) -> Decision:
    demand = Demand(wanted, cluster)
    if len(cluster) <= SMALL:
        return _among_few(demand, cluster)
    if cluster.refusals and demand.plain and (known := cluster.refusals.get(_shape(demand))) is not None:
        return known
    walk = Walk(demand.cpus, demand.memory, demand.disk, demand.check)
    blocks = cluster.blocks({name: value for name, value, _ in demand.labels})
    walk.over(blocks)
    if walk.found:
        return _choose(rank(demand, walk.found), walk, cluster, blocks is not cluster.order.blocks)
    refused = _refusal(demand, cluster.known_nodes())
    if demand.plain:
        cluster.remember(_shape(demand), refused)
    return refused


def _shape(demand: Demand) -> tuple[object, ...]:
    return (demand.cpus, demand.memory, demand.disk, demand.image)


def _among_few(demand: Demand, cluster: Cluster) -> Decision:
    """Check every node."""
    check = demand.refused_by
    fitting = [slot for slot in cluster.order if not demand.missing(slot) and check(slot) is None]
    rest = sorted((slot for slot in cluster.known_nodes() if slot not in fitting), key=lambda slot: slot.node)
    scored = rank(demand, fitting)
    reasons = [explain.runner_up(one) for one in scored]
    if scored:
        reasons[0] = explain.choice_reason(scored[0])
    reasons += [Reason(subject=slot.node, why="; ".join(explain.against(demand, slot))) for slot in rest]
    kept = explain.limit_reasons(reasons, nodes=True)
    if not scored:
        return Decision.no_node(_refusal(demand, rest).why_not, kept)
    best = scored[0]
    summary = f"node {best[3].node}: score {best[0]:.1f}, the best of {len(scored)} that will do, of {len(cluster)}"
    return Decision(node=best[3].node, score=best[0], reasons=kept, summary=summary)


def _choose(scored: list[Scored], walk: Walk, cluster: Cluster, labelled: bool) -> Decision:
    """Choose among the nodes that were found."""
    best, known, on_duty = scored[0], len(cluster), len(cluster.order)
    return Decision(
        node=best[3].node, score=best[0], tell=lambda: _why_taken(scored, walk, known, on_duty, labelled=labelled)
    )


def _why_taken(
    scored: list[Scored], walk: Walk, known: int, on_duty: int, *, labelled: bool
) -> tuple[tuple[Reason, ...], str]:
    """Explain the choice, including how many nodes were not checked. Uses no state of the cluster that may change."""
    best = scored[0]
    reasons = [explain.choice_reason(best), *map(explain.runner_up, scored[1 : 1 + RUNNERS_UP])]
    lower = scored[1 + RUNNERS_UP :]
    if lower:
        names = [one[3].node for one in lower[:NAMES]]
        reasons.append(explain.group(f"fit: score {lower[0][0]:.1f} or less", len(lower), names))
    looked_at = walk.fitting
    for why, (count, names) in walk.refused.items():
        reasons.append(explain.group(why, count, names))
        looked_at += count
    if walk.fitting > len(scored):
        reasons.append(explain.group("fit, but not scored: no emptier than these", walk.fitting - len(scored), ()))
    if on_duty > looked_at:
        why = "not looked at: not labelled so, or no emptier" if labelled else "not looked at: no emptier than these"
        reasons.append(explain.group(why, on_duty - looked_at, ()))
    if known > on_duty:
        reasons.append(explain.group("not on duty", known - on_duty, ()))
    summary = f"node {best[3].node}: score {best[0]:.1f}, the best of {len(scored)} that were scored, of {known:,}"
    return explain.limit_reasons(reasons), summary


class _Group(Struct, frozen=True):
    """Nodes that are unsuitable for the same reason."""

    said: str
    slots: list[NodeSlot]

    def reason(self, demand: Demand, *, full: bool) -> Reason:
        """Return the reason; `full`: a resource is insufficient, so name the largest free amount."""
        why = self.said
        if full:
            most = [f"{max(0, free):,} of {want:,} {what}" for what, want, free in demand.most(self.slots)]
            why = f"{why}: {', '.join(most)} free at most"
        return explain.group(why, len(self.slots), nsmallest(NAMES, (slot.node for slot in self.slots)))


def _groups(demand: Demand, slots: Iterable[NodeSlot]) -> tuple[list[_Group], list[_Group]]:
    """Group unsuitable nodes by reason: those with another objection, and those without enough capacity.

    A node with another objection does not count as full.
    """
    otherwise: dict[str, list[NodeSlot]] = {}
    full: dict[tuple[bool, bool, bool], list[NodeSlot]] = {}
    cpus, memory, disk, check = demand.cpus, demand.memory, demand.disk, demand.check
    for slot in slots:
        if not slot.on_duty:
            otherwise.setdefault(explain.off_duty(slot), []).append(slot)
        elif check is not None and (refused := check(slot)) is not None:
            otherwise.setdefault(refused, []).append(slot)
        else:
            full.setdefault((slot.cpus < cpus, slot.memory < memory, slot.disk < disk), []).append(slot)
    short = ("too few cpus", "too little memory", "too little disk")
    said = {lacks: " and ".join(compress(short, lacks)) for lacks in full}
    return [_Group(*item) for item in otherwise.items()], [_Group(said[lacks], found) for lacks, found in full.items()]


def _refusal(demand: Demand, slots: Iterable[NodeSlot]) -> Decision:
    """Return the decision that no node is suitable, with the most frequent reason first."""
    otherwise, full = _groups(demand, slots)
    groups = sorted(otherwise + full, key=lambda group: (-len(group.slots), group.said))
    reasons = [group.reason(demand, full=group in full) for group in groups[:_GROUPS]]
    rest = sum(len(group.slots) for group in groups[_GROUPS:])
    if rest:
        reasons.append(explain.group("for other reasons", rest, ()))
    told = "; ".join(explain.sentence(len(group.slots), group.said) for group in groups[:_TOLD])
    more = "; and others" if len(groups) > _TOLD else ""
    return Decision.no_node(f"{told}{more}" if groups else "there is none", explain.limit_reasons(reasons))
