"""Explanation of a placement: the verdict for each node, and the text of the reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.engine.placement.constraints import Demand, free_accelerators
from hostler.engine.placement.score import rank
from hostler.engine.text import clip
from hostler.kit.plural import counted
from hostler.model.trace import Reason
from hostler.model.vm_api import NodeVerdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hostler.engine.placement.cluster import Cluster
    from hostler.engine.placement.node_state import NodeSlot
    from hostler.engine.placement.request import PlacementRequest
    from hostler.engine.placement.score import Scored


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
    return tuple(against(Demand(wanted, cluster), slot))


def _judge(wanted: PlacementRequest, cluster: Cluster, limit: int) -> tuple[NodeVerdict, ...]:
    demand = Demand(wanted, cluster)
    fitting = [slot for slot in cluster.order if not demand.missing(slot) and demand.refused_by(slot) is None]
    verdicts = [
        NodeVerdict(node=one[3].node, fits=True, score=one[0], reasons=tuple(in_favour(demand, one)))
        for one in rank(demand, fitting)[:limit]
    ]
    if len(verdicts) < limit:
        will_do = {slot.node for slot in fitting}
        refused = [(slot.node, against(demand, slot)) for slot in cluster.known_nodes() if slot.node not in will_do]
        refused.sort(key=lambda one: (len(one[1]), one[0]))
        verdicts += [
            NodeVerdict(node=node, fits=False, score=0.0, reasons=tuple(reasons))
            for node, reasons in refused[: limit - len(verdicts)]
        ]
    return tuple(verdicts)


MOST = 2_048
"""Largest total length of all reasons of a decision, without JSON punctuation."""
_REST = 100
_LONGEST_REASON = 240
_LONGEST_NAME = 64


def many(count: int) -> str:
    """Return a number of nodes as text."""
    return counted(count, "node")


def sentence(count: int, why: str) -> str:
    """Return a number of nodes, and the objection to them."""
    has = ("has " if count == 1 else "have ") if why.startswith("too ") else ""
    return f"{many(count)} {has}{agreeing(count, why)}"


def agreeing(count: int, why: str) -> str:
    """Adapt the text about one node to a number of nodes."""
    return f"share {why.removeprefix('shares ')}" if count != 1 and why.startswith("shares ") else why


def choice_reason(best: Scored) -> Reason:
    """Explain the choice of the best node."""
    points, room, spread, slot = best
    return Reason(subject=slot.node, why=f"chosen: score {points:.1f} ({room:.0%} stays free, spread {spread:.0%})")


def runner_up(one: Scored) -> Reason:
    """Describe another suitable node."""
    points, room, spread, slot = one
    return Reason(subject=slot.node, why=f"fits: score {points:.1f} ({room:.0%} stays free, spread {spread:.0%})")


def group(why: str, count: int, names: Sequence[str]) -> Reason:
    """Return one reason for many nodes, with the first names."""
    shown, why = ", ".join(clip(name, _LONGEST_NAME) for name in names), agreeing(count, why)
    return Reason(subject=many(count), why=f"{why} ({shown}{', …' if count > len(names) else ''})" if shown else why)


def off_duty(slot: NodeSlot) -> str:
    """Return why a node gets no machines."""
    why = slot.state.why_not if slot.state is not None else ""
    return f"not on duty: {clip(why)}" if why else "not on duty"


def against(demand: Demand, slot: NodeSlot) -> list[str]:
    """Return all objections to a node; empty: it is suitable."""
    found = []
    if not slot.on_duty:
        found.append(off_duty(slot))
    wanted = demand.wanted
    found += [why for name, value, why in demand.labels if slot.labels.get(name) != value]
    for kind, count in demand.accelerators:
        if (free := free_accelerators(slot, kind)) < count:
            found.append(f"{max(0, free)} of {counted(count, 'accelerator')} of kind {kind} free")
    if slot.node in wanted.exclude:
        found.append("excluded")
    if wanted.fenced and (slot.state is None or not slot.state.fences):
        found.append("cannot fence machines")
    if (why := demand.declined_by(slot)) is not None:
        found.append(why)
    found += [rule.explain(slot) for rule in demand.required if rule.broken_by(slot) is not None]
    if missing := demand.missing(slot):
        parts = " and ".join(f"{want - free:,} of {want:,} {what}" for what, want, free in missing)
        found.append(f"no room: {parts} missing")
    return found


def in_favour(demand: Demand, one: Scored) -> list[str]:
    """Return what favours a suitable node, and its drawbacks."""
    _, room, spread, slot = one
    cpus, memory, disk = slot.capacity
    found = [
        f"{room:.0%} stays free: {slot.cpus - demand.cpus:,} of {cpus:,} cpus,"
        f" {slot.memory - demand.memory:,} of {memory:,} MiB of memory,"
        f" {slot.disk - demand.disk:,} of {disk:,} GiB of disk"
    ]
    neighbours = demand.neighbours
    if neighbours.vms:
        shared = [
            f"{neighbours.counts[domain]:,} on {domain}" for domain, _ in slot.domains if domain in neighbours.counts
        ]
        of = f"of {counted(len(neighbours.vms), 'other')} of the project"
        found.append(f"spread {spread:.0%}: {of}, {', '.join(shared) if shared else 'none shares anything'}")
    found += [text for rule in demand.required if (text := rule.explain(slot))]
    for rule in demand.preferred:
        if text := rule.explain(slot):
            found.append(f"preferred{'' if rule.broken_by(slot) is None else ', not kept'}: {text}")
    return found


def limit_reasons(reasons: Iterable[Reason], *, nodes: bool = False) -> tuple[Reason, ...]:
    """Return as many reasons as fit; then the number of those left out (`nodes`: each is about one node)."""
    kept: list[Reason] = []
    left, out = MOST, 0
    for reason in reasons:
        why = reason.why
        size = len(reason.subject) + len(why)
        if size > _LONGEST_REASON:
            reason = Reason(subject=clip(reason.subject, _LONGEST_NAME * 2), why=clip(why, _LONGEST_REASON))  # noqa: PLW2901
            size = len(reason.subject) + len(reason.why)
        if out or size > left - _REST:
            out += 1
        else:
            kept.append(reason)
            left -= size
    if out:
        subject = many(out) if nodes else counted(out, "more reason")
        kept.append(Reason(subject=subject, why="left out here, for brevity"))
    return tuple(kept)
