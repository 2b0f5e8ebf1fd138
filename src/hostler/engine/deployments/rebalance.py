"""Rebalancing: move instances onto nodes that joined or came back, one at a time.

A move is two transactions. The first writes the LOAD on the target and the move (`Deployment.move`) together. Once the
new instance has been ready for `min_ready` seconds, the second writes the DEACTIVATE on the source and deletes the move
together: the agent withdraws the endpoints before it stops the instance, as in a drain. So each leader sees from the
store alone what is left to do. A move whose instance was lost is given up, and nothing else changes.

`better` is pure. Each move lowers (sum of squares of instances by node, by rack, by PDU, by ToR switch), compared in
this order. So moves end, and none of them is ever reversed while the nodes stay the same.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.deployments import transactions
from hostler.engine.deployments.decide import commanded_instance
from hostler.engine.deployments.instance_index import InstanceState, kind_of
from hostler.engine.deployments.instance_placement import AVOIDED
from hostler.engine.deployments.node_cache import has
from hostler.engine.deployments.state_machine import LEAVING
from hostler.engine.deployments.version_set import new_side
from hostler.engine.runtime.guarded_writer import Why
from hostler.keys.families import DEPLOYMENT
from hostler.model.deployment import SliceInstance, SliceState
from hostler.model.rollout import Move, Phase, SliceDecision
from hostler.model.trace import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hostler.engine.deployments.decide import SliceSnapshot, Spot
    from hostler.engine.deployments.failed_instances import Again
    from hostler.engine.deployments.instance_index import InstanceIndex, Party
    from hostler.engine.deployments.instance_placement import Loading
    from hostler.engine.deployments.node_cache import FailureDomain, NodeCache, NodeSite
    from hostler.engine.deployments.state_machine import Limits
    from hostler.engine.deployments.transactions import DesiredSlice
    from hostler.engine.runtime.guarded_writer import GuardedWriter
    from hostler.engine.view import View
    from hostler.keys.entry import Entry
    from hostler.kit.clock import Clock
    from hostler.model.deployment import SliceSpec
    from hostler.model.rollout import Deployment, Retries

MOVED = f"{LEAVING}moved to "
"""Prefix of `why` of an instance that leaves its node because of a move."""
SOURCES = 64
"""Nodes with the most instances that are compared as sources if no node has two more than another."""


class Rebalance:
    """The moves of one leadership."""

    def __init__(
        self, view: View, writing: GuardedWriter, loading: Loading, again: Again, *, limits: Limits, clock: Clock
    ) -> None:
        self._view, self._fleet, self._writing, self._loading = view, view.fleet, writing, loading
        self._again, self._every, self._clock = again, limits.rebalance_every, clock
        self._began = clock.now()
        self._changed: dict[str, float] = {}  # when a node last changed

    def node_changed(self, node: str) -> None:
        """Restart the pause before a changed node becomes a target."""
        self._changed[node] = self._clock.now()

    async def look(  # noqa: PLR0917  (the spec and the status)
        self,
        base: str,
        desired: DesiredSlice,
        spec: SliceSpec | None,
        look: SliceSnapshot,
        deployment: Entry[Deployment] | None,
        retries: Iterable[Entry[Retries]],
    ) -> bool:
        """Start, finish or give up a move; return whether anything was written."""
        if deployment is None or spec is None:
            return False
        move = deployment.value.move
        if move is None:
            if self._every is None or not self._may_start(look, deployment.value, retries):
                return False
            return await self._start(base, desired, spec, look, deployment)
        against = self._against(look, deployment.value)
        if against:
            why = f"the move of an instance from {move.source} to {move.target} is given up: {against}"
            txn = transactions.together([*desired.unchanged(base), DEPLOYMENT.unchanged(deployment)], [])
            txn.then.append(DEPLOYMENT.put(self._ended(deployment.value), base=base))
            await self._writing.write(base, DEPLOYMENT.fill(base=base), txn, Why(what="move given up", why=why))
            return True
        party = look.roster.party(new_side(deployment.value))
        if party.totals[InstanceState.ACTIVE] < _there(party) or look.fresh:
            return False
        return await self._finish(base, desired, deployment, move)

    # Internal

    def _may_start(self, look: SliceSnapshot, now: Deployment, retries: Iterable[Entry[Retries]]) -> bool:
        """Return whether the slice is as desired, and no failure, change or drain prevents a move."""
        roster, wants = look.roster, dict(look.aim.wants)
        party = roster.party(new_side(now))
        count = party.count()
        is_calm = (
            now.phase is Phase.DONE
            and len(roster.parties) == 1
            and count.ready == count.there == wants.get(party.side, 0)
            and not (count.leaving or count.failed or look.fresh)
        )
        wall = self._clock.wall()
        fails = any(one.value.failures and wall - one.value.at < AVOIDED for one in retries)
        if not is_calm or not look.may_activate or fails:
            return False
        ground = self._fleet.ground
        if ground.leaving or any(ground.site(node).kind for node in roster.on):
            return False
        return all(entry.value.released for entry in self._view.brakes.entries.values())

    def _against(self, look: SliceSnapshot, now: Deployment) -> str:
        """Return why a started move cannot continue; empty: it continues."""
        party, move = look.roster.party(new_side(now)), now.move
        wanted = dict(look.aim.wants).get(party.side, 0)
        if now.phase is not Phase.DONE or move is None:
            return "the slice is changing"
        if _there(party) != wanted + 1:
            return "the number of instances changed"
        if not look.may_activate:
            return "a slice that it needs has no active instance"
        for node in (move.source, move.target):
            if self._fleet.site(node).kind:
                return f"node {node}: {self._fleet.site(node).why}"
            if not party.there_on(node):
                return f"node {node} has no instance of it"
        return ""

    async def _start(
        self, base: str, desired: DesiredSlice, spec: SliceSpec, look: SliceSnapshot, deployment: Entry[Deployment]
    ) -> bool:
        every, wall = self._every or 0.0, self._clock.wall()
        avoided = self._loading.avoided_nodes(spec.artifact)

        def takes(site: NodeSite) -> bool:
            return has(site, spec.node_labels) and site.node not in avoided and self._is_settled(site.node)

        found = better(look.roster, self._fleet.ground, takes)
        if found is None:
            if better(look.roster, self._fleet.ground, lambda site: has(site, spec.node_labels)) is not None:
                self._again(base, after=every)  # a node must accept slices for some time before it becomes a target
            return False
        left = max(deployment.value.moved_at, deployment.value.changed_at) + every - wall
        if 0 < left <= every:
            self._again(base, after=left + 0.001)
            return False
        source, target, why = found
        side = new_side(deployment.value)
        numbers = self._fleet.planned_index(base).numbers_of(side.artifact).take(1)
        try:
            one = SliceInstance(state=SliceState.LOAD, template=side.template, why=why)
            spot = (target, side.artifact)
            written = transactions.slice_change(
                spot, self._fleet.entry(*spot), {numbers[0]: one}, at=wall, settings=look.aim.settings
            )
            txn = transactions.together([*desired.unchanged(base), DEPLOYMENT.unchanged(deployment)], [written])
            move = Move(source=source, target=target, why=why, at=wall)
            chosen = Reason(subject=target, why=why)
            decision = SliceDecision(chosen=(chosen,), fence=self._writing.fence(), at=wall)
            txn.then += [
                DEPLOYMENT.put(msgspec.structs.replace(deployment.value, move=move), base=base),
                transactions.placement_decision(decision, side.artifact),
            ]
            with self._loading.reserved([target]):
                said = Why(what="rebalanced", why=f"one instance moves from {source}: {why}", reasons=(chosen,))
                await self._writing.write(base, DEPLOYMENT.fill(base=base), txn, said)
                await self._writing.caught_up(base)
        finally:
            self._fleet.planned_index(base).give_back(side.artifact, numbers)
            self._fleet.forget(base)
        return True

    async def _finish(self, base: str, desired: DesiredSlice, deployment: Entry[Deployment], move: Move) -> bool:
        side = new_side(deployment.value)
        spot: Spot = (move.source, side.artifact)
        entry = self._fleet.entry(*spot)
        active = [
            (number, one)
            for number, one in ({} if entry is None else entry.value.each()).items()
            if one.template == side.template and kind_of(one) == InstanceState.ACTIVE
        ]
        if not active:
            return False
        number, one = max(active, key=lambda found: found[0])
        why = f"{MOVED.removeprefix(LEAVING)}{move.target}: {move.why}"
        goes = commanded_instance(msgspec.structs.replace(one, why=why), SliceState.DEACTIVATE)
        written = transactions.slice_change(spot, entry, {number: goes}, at=self._clock.wall(), settings={})
        txn = transactions.together([*desired.unchanged(base), DEPLOYMENT.unchanged(deployment)], [written])
        txn.then.append(DEPLOYMENT.put(self._ended(deployment.value), base=base))
        why = f"instance {number} leaves {move.source}: another one serves on {move.target}; {move.why}"
        await self._writing.write(base, DEPLOYMENT.fill(base=base), txn, Why(what="moved away", why=why, read=(entry,)))
        return True

    def _ended(self, now: Deployment) -> Deployment:
        return msgspec.structs.replace(now, move=None, moved_at=self._clock.wall())

    def _is_settled(self, node: str) -> bool:
        """Return whether a node has accepted slices for as long as the pause between two moves."""
        return self._clock.now() - self._changed.get(node, self._began) >= (self._every or 0.0)


def better(roster: InstanceIndex, ground: NodeCache, takes: Callable[[NodeSite], bool]) -> tuple[str, str, str] | None:
    """Return source, target and reason of the one move that improves the spread most; None: none improves it."""
    targets: dict[int, dict[FailureDomain, str]] = {}  # by number of instances: the first node of each location
    for place in ground.places.values():
        for node in itertools.chain.from_iterable(place.by_total[total] for total in sorted(place.by_total)):
            if takes(ground.sites[node]):
                targets.setdefault(roster.on.get(node, 0), {}).setdefault(place, node)
    if not targets or not roster.on:
        return None
    top, least = max(roster.on.values()), min(targets)
    sources = [(place, next(iter(levels[top]))) for place, levels in roster.levels.items() if levels.get(top)]
    sources.sort(key=lambda one: _weight(roster, one[0]), reverse=True)
    if top - least >= 2:
        place, source = sources[0]
        target = min(targets[least].items(), key=lambda one: (_weight(roster, one[0]), one[0].order))[1]
        return source, target, f"{least} instances on {target}, {top} on {source}"
    found = [
        (change, to.order, source, target, to)
        for place, source in sources[:SOURCES]
        for to, target in targets.get(top - 1, {}).items()
        if (change := _change(roster, place, to)) < (0, 0, 0)
    ]
    if not found:
        return None
    change, _, source, target, to = min(found, key=lambda one: one[:4])
    what = next(name for name, less in zip(("rack", "pdus", "tors"), change) if less)
    shares = {"rack": to.rack, "pdus": ", ".join(to.pdus), "tors": ", ".join(to.tors)}[what]
    return source, target, f"fewer instances share {what} {shares} than share those of {source}"


def _weight(roster: InstanceIndex, place: FailureDomain) -> tuple[int, int, int]:
    """Return how many instances share the rack, the PDUs and the ToR switches of a location."""
    return (
        roster.racks.get(place.rack, 0),
        sum(roster.pdus.get(pdu, 0) for pdu in place.pdus),
        sum(roster.tors.get(tor, 0) for tor in place.tors),
    )


def _change(roster: InstanceIndex, source: FailureDomain, target: FailureDomain) -> tuple[int, int, int]:
    """Return by how much half the sums of squares change; zeros if different facts are known of the two locations."""
    known = [(bool(place.rack), len(place.pdus), len(place.tors)) for place in (source, target)]
    if known[0] != known[1]:
        return (0, 0, 0)
    racks = [((source.rack,), (target.rack,), roster.racks), (source.pdus, target.pdus, roster.pdus)]
    racks.append((source.tors, target.tors, roster.tors))
    first, second, third = (
        sum(2 * counts.get(name, 0) + 1 for name in to if name not in of)
        - sum(2 * counts.get(name, 0) - 1 for name in of if name not in to)
        for of, to, counts in racks
    )
    return first, second, third


def _there(party: Party) -> int:
    return party.count().there
