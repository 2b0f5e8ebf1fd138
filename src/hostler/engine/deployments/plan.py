"""Computes what an apply would do, without doing it. Pure: takes the status, the spec, and a placement function.

The nodes are those that the leader would choose now for a single slice, computed on a copy of the node cache. If
several slices get instances at the same time, or old instances are removed one by one, it may choose other, equally
good nodes; `about` says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from hostler.engine.deployments import autoscale, spread
from hostler.engine.deployments import node_cache as grounds
from hostler.engine.deployments.instance_index import InstanceIndex
from hostler.engine.deployments.node_cache import has
from hostler.kit.plural import counted
from hostler.model.blueprint_api import Planned, PlannedMove, SliceChange, SlicePlan
from hostler.model.deployment import USUAL_STAGES, Approval, Atomicity, StrategyKind
from hostler.model.trace import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hostler.engine.deployments.node_cache import NodeCache
    from hostler.engine.deployments.views import SliceFacts
    from hostler.engine.view import View
    from hostler.model.deployment import SliceSpec


SHOWN = 200
"""Nodes that are listed per slice."""
MOST = 5_000
"""Instances of one slice for which nodes are chosen: more would take too long for the caller, not for the leader."""

FULL = (Reason(subject="nodes that accept it", why=f"no node gets more than {spread.MOST:,} instances of one slice"),)
"""The reason why further instances have no node, if there were nodes for all that were placed."""


class Placed(msgspec.Struct, frozen=True):
    """Result of a simulated placement. `nodes`: each with its number of instances and the reason."""

    nodes: tuple[tuple[str, int, str], ...] = ()
    passed_over: tuple[Reason, ...] = ()
    waiting: int = 0
    room: int | None = None
    """How many more instances all nodes accept, if `MOST` were placed; None: not computed."""


class DryRunPlacement(Protocol):
    """Chooses nodes as the leader does."""

    def __call__(self, spec: SliceSpec, count: int, there: Mapping[str, int]) -> Placed:
        """Return nodes for `count` instances; `there` are the instances that nodes have or keep."""
        ...


def slice_plan(known: SliceFacts, before: SliceSpec | None, place: DryRunPlacement) -> SlicePlan:
    """Return the plan for one slice. `known.spec` is the new spec, `before` the stored one; None: there is none."""
    spec = known.spec
    stays, goes = _divide(known)
    desired = _desired_count(known)
    drained = {node: count for node, count in stays.items() if node in known.drained}
    fixed = {node: count for node, count in stays.items() if node not in known.drained}
    surplus = _surplus(fixed, drained, desired)
    for node, count in surplus.items():
        for side in (fixed, drained):
            side[node] = side.get(node, 0) - min(count, side.get(node, 0))
    missing = desired - sum(fixed.values())
    # An instance on a node being drained stays until its replacement is ready; without a replacement it stays there.
    asked = min(missing, MOST)
    placed = Placed() if spec is None or missing <= 0 else place(spec, asked, _positive(fixed))
    got = sum(count for _, count, _ in placed.nodes)
    if missing > asked == got:  # the rest is placed in the same way, as far as there is room
        got = missing if placed.room is None else min(missing, placed.room)
    # Instances that are missing although those on drained nodes still count are placed first.
    short = max(0, missing - sum(drained.values()))
    leave = _sum(goes, surplus, _first(drained, got - short))
    load = {node: count for node, count, _ in placed.nodes}
    why = {node: reason for node, _, reason in placed.nodes}
    moves = _moves(leave, load, known.drained)
    return SlicePlan(
        base=known.base,
        what=_what(spec, before),
        artifact="" if spec is None else spec.artifact,
        previous="" if before is None else before.artifact,
        instances=desired,
        previous_instances=0 if before is None else before.instances,
        how=how(spec, before) + _together(spec, before),
        to_load=got,
        to_unload=sum(leave.values()),
        to_move=sum(move.instances for move in moves),
        load=tuple(Planned(node=node, instances=load[node], why=why[node]) for node in sorted(load)[:SHOWN]),
        unload=tuple(
            Planned(node=node, instances=leave[node], why=_why_gone(known, node)) for node in sorted(leave)[:SHOWN]
        ),
        move=moves[:SHOWN],
        waiting=max(0, short - got),
        passed_over=(placed.passed_over or FULL) if got < missing else (),
    )


def about(plans: Sequence[SlicePlan]) -> str:
    """Return a sentence that names the slices whose nodes are an estimate; empty: none."""
    loading = [plan for plan in plans if plan.load]
    if len(loading) < 2:
        loading = [plan for plan in loading if plan.unload]
    if not loading:
        return ""
    named = ", ".join(plan.base for plan in loading[:10]) + (" and others" if len(loading) > 10 else "")
    return (
        f"{named}: the numbers of instances are exact, the nodes are an estimate:"
        " placements and removals at the same time may lead to other, equally good nodes"
    )


def _divide(known: SliceFacts) -> tuple[dict[str, int], dict[str, int]]:
    """Return the instances by node: those that can stay, and those that go. Leaving instances are in neither."""
    stays: dict[str, int] = {}
    goes: dict[str, int] = {}
    for seen in known.seen:
        if not seen.goes:
            side = stays if known.is_wanted(seen) else goes
            side[seen.node] = side.get(seen.node, 0) + seen.count
    return stays, goes


def _desired_count(known: SliceFacts) -> int:
    """Return the desired number as the leader computes it: from the blueprint, or the current autoscale number."""
    if known.spec is None:
        return 0
    return autoscale.desired_count(known.spec, None if known.deployment is None else known.deployment.scale)


def _surplus(fixed: Mapping[str, int], drained: Mapping[str, int], desired: int) -> dict[str, int]:
    """Return the instances above the desired number: on nodes being drained first, then where there are most."""
    over = sum(fixed.values()) + sum(drained.values()) - desired
    found = _first(drained, over)
    over -= sum(found.values())
    if over <= 0:
        return found
    level, high = 0, max(fixed.values())
    while level < high:  # find the lowest level to which nodes can be cut without removing too many
        middle = (level + high) // 2
        if sum(max(0, count - middle) for count in fixed.values()) <= over:
            high = middle
        else:
            level = middle + 1
    for node in sorted(fixed, reverse=True):
        taken = max(0, fixed[node] - level)
        if taken:
            found[node] = taken
            over -= taken
    for node in sorted(fixed, reverse=True):
        if over and fixed[node] >= level > 0:
            found[node] = found.get(node, 0) + 1
            over -= 1
    return found


def _moves(leave: Mapping[str, int], load: Mapping[str, int], drained: frozenset[str]) -> tuple[PlannedMove, ...]:
    """Return the moves from one node to another. What leaves and comes on the same node is replaced there."""
    sources = {node: count - min(count, load.get(node, 0)) for node, count in leave.items()}
    targets = {node: count - min(count, leave.get(node, 0)) for node, count in load.items()}
    found: list[PlannedMove] = []
    waiting = [(node, targets[node]) for node in sorted(targets) if targets[node]]
    for source in sorted(sources, key=lambda node: (node not in drained, node)):
        count = sources[source]
        while count and waiting:
            target, room = waiting[0]
            moved = min(count, room)
            why = f"{source} is being drained" if source in drained else ""
            found.append(PlannedMove(source=source, target=target, instances=moved, why=why))
            count -= moved
            waiting[0] = target, room - moved
            if room == moved:
                waiting.pop(0)
    return tuple(found)


def _why_gone(known: SliceFacts, node: str) -> str:
    return "it is being drained" if node in known.drained else ""


def _first(counts: Mapping[str, int], most: int) -> dict[str, int]:
    """Take up to `most` instances, in order of nodes."""
    found: dict[str, int] = {}
    for node in sorted(counts):
        taken = min(counts[node], most - sum(found.values()))
        if taken > 0:
            found[node] = taken
    return found


def _sum(*sides: Mapping[str, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for side in sides:
        for node, count in side.items():
            found[node] = found.get(node, 0) + count
    return _positive(found)


def _positive(counts: Mapping[str, int]) -> dict[str, int]:
    return {node: count for node, count in counts.items() if count > 0}


def _what(spec: SliceSpec | None, before: SliceSpec | None) -> SliceChange:
    if spec is None:
        return SliceChange.REMOVE
    if before is None:
        return SliceChange.ADD
    if spec.artifact != before.artifact:
        return SliceChange.UPGRADE
    if spec.settings != before.settings:
        return SliceChange.SETTINGS
    if spec.instances != before.instances:
        return SliceChange.SCALE
    return SliceChange.KEEP if spec == before else SliceChange.CHANGE


# Descriptions


def how(spec: SliceSpec | None, before: SliceSpec | None) -> str:
    """Return a sentence that describes how the change is carried out."""
    what = _what(spec, before)
    if spec is None:
        return "takes no new calls, finishes those in flight, and is removed"
    if what is SliceChange.ADD:
        return f"starts once {' and '.join(spec.needs)} serves" if spec.needs else "starts at once"
    if what is SliceChange.UPGRADE and spec.strategy.type is StrategyKind.CANARY:
        return _canary(spec)
    if what is SliceChange.UPGRADE and spec.strategy.type is StrategyKind.BLUE_GREEN:
        strategy = spec.strategy
        bake = f" {_seconds(strategy.bake)} after the last of them is ready" if strategy.bake else ""
        return (
            f"blue-green: {spec.instances} new instances next to the old ones, then all calls switch at once{bake};"
            f" the old ones stay for {_seconds(strategy.keep)}{_approved(spec, 'the switch waits')}"
        )
    if what in (SliceChange.UPGRADE, SliceChange.SETTINGS):
        return _rolling(spec)
    return ""


def _together(spec: SliceSpec | None, before: SliceSpec | None) -> str:
    changes = {SliceChange.ADD, SliceChange.UPGRADE, SliceChange.SETTINGS}
    is_alone = spec is None or spec.atomicity is not Atomicity.ALL_OR_NOTHING
    if is_alone or _what(spec, before) not in changes:
        return ""
    return "; if it fails, the whole revision is rolled back"


def _rolling(spec: SliceSpec) -> str:
    strategy = spec.strategy
    least = max(spec.instances - strategy.max_unavailable, spec.min_available)
    most = spec.instances + strategy.max_surge
    approval = _approved(spec, "everything after the first batch waits")
    return f"rolling: at most {most} instances, at least {least} of them ready{approval}"


def _canary(spec: SliceSpec) -> str:
    stages, gate = spec.strategy.stages or USUAL_STAGES, spec.strategy.gate
    steps = ", ".join(f"{stage.weight} % for {_seconds(stage.hold)}" for stage in stages)
    slow = "" if gate.max_latency_ms is None else f" or slower than {gate.max_latency_ms:g} ms"
    least = f" and at least {counted(gate.min_calls, 'call')} each" if gate.min_calls else ""
    return (
        f"canary: {steps}{least}, then all; rollback if more than {gate.max_error_rate * 100:g} % of calls fail{slow}"
        f"{_approved(spec, 'each stage waits')}"
    )


def _approved(spec: SliceSpec, what: str) -> str:
    return "" if spec.strategy.approval is Approval.AUTOMATIC else f"; {what} for approval"


def _seconds(seconds: float) -> str:
    return f"{seconds:g} s"


class Placing:
    """One per plan, created once the slice cache is loaded. Earlier placements count for later ones."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._ground = copy_of(view, view.fleet.ground)

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


def copy_of(view: View, ground: NodeCache) -> NodeCache:
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
