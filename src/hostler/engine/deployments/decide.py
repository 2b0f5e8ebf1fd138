"""Decides which changes to make to one slice now, from the aim and the status. Pure.

Each decision contains everything that can be done at once: changes by slice key, and the number of instances to load.
Instances in a transitional state (LOADING, …) are waited for: their next change triggers the next decision.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.deployments.instance_index import UNDER_WAY, InstanceState, kind_of
from hostler.engine.deployments.state_machine import LEAVING, WAY_OUT, since
from hostler.engine.deployments.version_set import new_side
from hostler.model.deployment import SliceState
from hostler.model.rollout import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hostler.engine.deployments.instance_index import InstanceIndex, Party
    from hostler.engine.deployments.state_machine import Limits
    from hostler.engine.deployments.strategy import Aim, VersionSet
    from hostler.keys.entry import Entry
    from hostler.model.deployment import SliceInstance, SliceRecord

COMPARED = 512
"""Maximum number of nodes that are compared to find the one with the most instances."""
_S = SliceState
_BY_ITSELF = (Phase.ROLLING, Phase.BACKING_OUT, Phase.REMOVING)
"""In these phases instances are removed anyway and new ones avoid drained nodes, so the nodes empty by themselves. If
the deployment is waiting for something, the nodes are emptied as in any other phase."""
UNTAKEN = "not taken up"
"""Prefix of `why` if a node does not carry out an UNLOAD."""
NO_NODE = "no other node accepts them"
NO_NEED = "a slice that their replacements need is not active"
NO_ROOM = "the deployment does not progress, and the maximum number of instances is reached"

Spot = tuple[str, str]
"""Node and artifact: a slice key."""


class SliceSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Snapshot of a slice on which a decision is based."""

    roster: InstanceIndex
    entry: Callable[[str, str], Entry[SliceRecord] | None]
    """Returns the record of an artifact on a node."""
    aim: Aim
    leaving: Mapping[str, None]
    """Nodes that instances must leave: drained nodes, and nodes without the required labels."""
    most: int
    """Maximum number of instances during a deployment."""
    is_proving: bool = False
    """The deployment will continue by itself: new instances must first be ready for `min_ready` seconds."""
    fresh: int = 0
    """Instances of the desired version that have not been ready long enough to count."""
    moves: bool = False
    """One instance is being moved to another node: there is one more than desired until the old one is gone. Never set
        for a slice that no blueprint names, because none of its instances stays."""
    takes: bool
    """Whether any node accepts an instance."""
    may_activate: bool
    """Whether all slices that it needs are active."""
    may_activate_previous: bool = True
    """Whether all slices that the previous version needs are active."""
    may_remove: bool = True
    """False: the slices that need it must be removed first."""


class SliceSteps(msgspec.Struct):
    """The result of a decision."""

    changes: dict[Spot, dict[int, SliceInstance]] = msgspec.field(default_factory=dict)
    said: dict[str, int] = msgspec.field(default_factory=dict)
    """Number of instances per command, for display."""
    loads: list[tuple[VersionSet, int]] = msgspec.field(default_factory=list)
    """Instances to load."""
    stays: int = 0
    """Instances on nodes that they must leave, but cannot leave now."""
    stays_why: str = ""
    waits: int = 0
    """Instances that are loaded but wait for a slice that they need."""


def decide(look: SliceSnapshot) -> SliceSteps:
    """Return everything that can be done now; nothing exactly when the slice is as desired, or in transition to it."""
    plan = SliceSteps()
    wants, spare = dict(look.aim.wants), dict(look.aim.spare)
    phase = None if look.aim.deployment is None else look.aim.deployment.phase
    drains = look.leaving and look.takes and phase not in _BY_ITSELF
    goes_by_itself = phase in _BY_ITSELF and phase is not Phase.REMOVING
    one_moves = False
    moves_of = new_side(look.aim.deployment) if look.moves and look.aim.deployment is not None else None
    for party in list(look.roster.parties.values()):
        moves = _Moves(look, party, plan)
        moves.all(InstanceState.LEFT, _S.UNLOAD)
        want = wants.pop(party.side, 0) + (party.side == moves_of)
        there = party.count().there
        bad = [node for node in look.leaving if party.there_on(node)] if look.leaving else []
        if bad and want and not look.takes:
            _stay(plan, party, bad, NO_NODE)
        elif bad and want and drains:
            there -= moves.some(InstanceState.LOAD, _S.UNLOAD, there, bad) + moves.some(
                InstanceState.LOADED, _S.UNLOAD, there, bad
            )
            there -= moves.some(InstanceState.DOWN, _S.DEACTIVATE, there, bad)
            if not one_moves:
                one_moves = True
                if party.totals[InstanceState.ACTIVE] > want:
                    there -= moves.some(InstanceState.ACTIVE, _S.DEACTIVATE, 1, bad)
                else:
                    want += 1
        if there > want and look.may_remove:
            replaced = goes_by_itself and any(node in party.nodes[InstanceState.ACTIVE] for node in bad)
            moves.fewer(there - want, spare.get(party.side, 0), bad if replaced else None)
        elif there < want:
            plan.loads.append((party.side, want - there))
        if look.may_activate or _served_without(look, party):
            moves.all(InstanceState.LOADED, _S.ACTIVATE)
        elif party.totals[InstanceState.LOADED]:
            plan.waits += party.totals[InstanceState.LOADED]
            if bad and want and drains:
                _stay(plan, party, bad, NO_NEED)
    plan.loads.extend((side, want) for side, want in wants.items() if want > 0)
    is_still = not plan.changes and not plan.loads and not look.roster.is_under_way()
    if look.leaving and goes_by_itself and is_still and not look.is_proving:
        _leave(look, plan)
    return plan


def _served_without(look: SliceSnapshot, party: Party) -> bool:
    """Return whether the previous version serves and all slices that it needs are active."""
    now = look.aim.deployment
    is_previous = now is not None and party.side.artifact == now.previous != now.artifact
    return is_previous and look.may_activate_previous and party.totals[InstanceState.ACTIVE] > 0


def _leave(look: SliceSnapshot, plan: SliceSteps) -> None:
    """Move instances off nodes while a deployment waits: one at a time, each after its replacement is ready."""
    spare = dict(look.aim.spare)
    there = sum(look.roster.on.values())
    plan.stays, plan.stays_why = 0, ""
    for party in list(look.roster.parties.values()):
        bad = [node for node in look.leaving if party.there_on(node)]
        if not bad:
            continue
        moves = _Moves(look, party, plan)
        if not look.takes:
            _stay(plan, party, bad, NO_NODE)
        elif (
            moves.some(InstanceState.LOAD, _S.UNLOAD, there, bad)
            + moves.some(InstanceState.LOADED, _S.UNLOAD, there, bad)
            + moves.some(InstanceState.DOWN, _S.DEACTIVATE, there, bad)
        ):
            return
        elif there <= look.most:
            plan.loads.append((party.side, 1))
            return
        elif spare.get(party.side, 0) and moves.some(InstanceState.ACTIVE, _S.DEACTIVATE, 1, bad):
            return
        else:
            _stay(plan, party, bad, NO_ROOM if look.may_activate else NO_NEED)


def _stay(plan: SliceSteps, party: Party, nodes: Iterable[str], why: str) -> None:
    plan.stays += sum(party.there_on(node) for node in nodes)
    plan.stays_why = why


class _Moves:
    """Adds changes of one side to a plan."""

    def __init__(self, look: SliceSnapshot, party: Party, plan: SliceSteps) -> None:
        self._look, self._party, self._plan = look, party, plan

    def all(self, kind: InstanceState, state: SliceState) -> None:
        """Change every instance of this kind that the plan does not change yet."""
        nodes = self._party.nodes[kind]
        if nodes:
            self.some(kind, state, self._party.totals[kind], list(nodes))

    def fewer(self, count: int, spare: int, bad: list[str] | None = None) -> None:
        """Remove `count` instances: first those that do not serve, then no more serving ones than can be spared.

        `bad`: nodes to leave that have serving instances. Instances loaded on other nodes may be their replacements
        and are kept.
        """
        party = self._party
        for kind in (InstanceState.LOAD, InstanceState.LOADED):
            count -= self._crowded(kind, _S.UNLOAD, count) if bad is None else self.some(kind, _S.UNLOAD, count, bad)
        if bad is None:  # these become removable later
            count -= sum(
                party.totals[kind] for kind in (InstanceState.LOADING, InstanceState.ACTIVATE, InstanceState.ACTIVATING)
            )
        count -= self._crowded(InstanceState.DOWN, _S.DEACTIVATE, count)
        self._crowded(InstanceState.ACTIVE, _S.DEACTIVATE, min(count, spare))

    def some(self, kind: InstanceState, state: SliceState, most: int, nodes: Iterable[str]) -> int:
        """Change up to `most` instances on these nodes, in this order; return how many."""
        party, artifact, done = self._party, self._party.side.artifact, 0
        here = party.nodes[kind]
        for node in nodes:
            if done >= most:
                break
            entry = self._look.entry(node, artifact) if node in here else None
            if entry is None:
                continue
            changes = self._plan.changes.get((node, artifact), {})
            for number, one in entry.value.each().items():
                if done < most and number not in changes and self._is(one, kind):
                    changes[number] = commanded_instance(one, state)
                    done += 1
            if changes:
                self._plan.changes[node, artifact] = changes
        if done:
            self._plan.said[state] = self._plan.said.get(state, 0) + done
        return done

    def _crowded(self, kind: InstanceState, state: SliceState, most: int) -> int:
        """Change up to `most` instances: first on nodes to leave, then on those with the most instances."""
        nodes = self._party.nodes[kind]
        if most <= 0 or not nodes:
            return 0
        if most >= self._party.totals[kind]:
            return self.some(kind, state, most, list(nodes))
        on, leaving = self._look.roster.on, self._look.leaving
        first = [node for node in leaving if node in nodes]
        done = self.some(kind, state, most, first)
        while done < most:
            compared = list(itertools.islice(nodes, COMPARED)) if most == 1 else list(nodes)
            compared.sort(key=lambda node: -on.get(node, 0))
            more = 0
            for node in compared:  # one per node in turn, so that all keep about the same number
                if done + more >= most:
                    break
                more += self.some(kind, state, 1, (node,))
            if not more:
                break
            done += more
        return done

    def _is(self, one: SliceInstance, kind: InstanceState) -> bool:
        return one.template == self._party.side.template and kind_of(one) == kind


def commanded_instance(one: SliceInstance, state: SliceState) -> SliceInstance:
    """Return the instance with a command for its node."""
    why = one.why
    if state is _S.DEACTIVATE:
        why = f"{LEAVING}{why}" if why else f"{LEAVING}no longer needed"
    return msgspec.structs.replace(one, state=state, since=0, ready=True, why=why)


class Failures(msgspec.Struct):
    """Instances that are removed because they failed."""

    changes: dict[Spot, dict[int, SliceInstance]] = msgspec.field(default_factory=dict)
    where: list[tuple[str, str]] = msgspec.field(default_factory=list)
    """The node and the reason of each."""


def failed(look: SliceSnapshot, artifact: str, most: int) -> Failures:
    """Return changes that unload the failed instances of the artifact, on at most `most` nodes."""
    found = Failures()
    nodes = dict.fromkeys(
        node
        for party in look.roster.parties.values()
        if party.side.artifact == artifact
        for node in party.nodes[InstanceState.FAILED]
    )
    for node in itertools.islice(nodes, most):
        entry = look.entry(node, artifact)
        for number, one in ({} if entry is None else entry.value.each()).items():
            if one.state is _S.FAILED:
                new = msgspec.structs.replace(one, state=_S.UNLOAD, since=0)
                found.changes.setdefault((node, artifact), {})[number] = new
                found.where.append((node, one.why))
    return found


def stuck(
    look: SliceSnapshot, artifact: str, limits: Limits, now: float, most: int
) -> tuple[Failures, list[tuple[str, str]]]:
    """Return changes for instances of the artifact whose node took too long for a step, on at most `most` nodes.

    Also return the nodes with instances that only the node can unload, each with a message; empty: already reported.
    `where` lists instances that their node never started; the others are counted when they are unloaded.
    """
    found, tell = Failures(), list[tuple[str, str]]()
    for party in look.roster.parties.values():
        if party.side.artifact != artifact:
            continue
        for kind in UNDER_WAY:
            limit = limits.stuck_after(SliceState[kind.name])
            for node in party.nodes[kind]:
                entry = look.entry(node, artifact)
                if entry is None or limit is None or len(found.changes) >= most:
                    continue
                for number, one in entry.value.each().items():
                    lasted = now - since(entry.value, one)
                    if one.template != party.side.template or kind_of(one) != kind or lasted < limit:
                        continue
                    if not one.state.is_known:
                        continue
                    out = WAY_OUT[one.state]
                    if out is one.state and one.why.startswith(UNTAKEN):
                        tell.append((node, ""))
                        continue
                    why = f"stuck: {one.state} for {lasted:.0f} s"
                    if out is one.state:
                        why = f"{UNTAKEN}: unload was requested {lasted:.0f} s ago, and only its node can do that"
                        tell.append((node, f"slice {artifact}, instance {number} on {node}: {why}"))
                    new = msgspec.structs.replace(one, state=out, since=0, why=why)
                    found.changes.setdefault((node, artifact), {})[number] = new
                    if one.state is _S.LOAD:
                        found.where.append((node, why))
    return found, tell
