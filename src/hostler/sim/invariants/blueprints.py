"""Whether slices match the blueprints: the serving instances, their endpoints, and what runs on the blades.

An instance on a node that is drained, or lacks the required labels, is a violation if another node accepts it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec

from hostler.engine.deployments.rebalance import MOVED
from hostler.keys.families import ALIVE, BLUEPRINT, DEPLOYMENT, ENDPOINT, MEMBER, SLICE, SLICE_OWNER
from hostler.model.deployment import SliceState, base_of
from hostler.model.node import Lifecycle
from hostler.model.rollout import Phase
from hostler.ports.slices import Life
from hostler.sim.invariants.converged import Unmet, every

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from hostler.model.deployment import Blueprint, Endpoint, SliceInstance, SliceRecord, SliceSpec
    from hostler.model.node import NodeRecord
    from hostler.model.rollout import Deployment
    from hostler.sim.world import World

INVARIANT = "blueprints_met"
_LEAVES = (Lifecycle.DRAINING, Lifecycle.DECOMMISSIONED)


class _Found(msgspec.Struct, frozen=True):
    """An instance as recorded under its key."""

    node: str
    artifact: str
    number: int
    one: SliceInstance

    @property
    def serves(self) -> bool:
        return self.one.state is SliceState.ACTIVE and self.one.ready


class _State(msgspec.Struct, kw_only=True):
    """All relevant records at one instant."""

    blueprints: dict[str, Blueprint]
    deployments: dict[str, Deployment]
    owners: dict[str, str]
    slices: dict[tuple[str, str], SliceRecord]
    endpoints: dict[tuple[str, int], dict[str, Endpoint]]
    alive: dict[str, None]

    @classmethod
    async def read(cls, world: World) -> _State:
        endpoints: defaultdict[tuple[str, int], dict[str, Endpoint]] = defaultdict(dict)
        for parts, endpoint in await every(world, ENDPOINT):
            endpoints[parts["artifact"], int(parts["instance"])][parts["method"]] = endpoint
        return cls(
            blueprints={parts["blueprint"]: value for parts, value in await every(world, BLUEPRINT)},
            deployments={parts["base"]: value for parts, value in await every(world, DEPLOYMENT)},
            owners={parts["base"]: value.blueprint for parts, value in await every(world, SLICE_OWNER)},
            slices={(parts["node"], parts["artifact"]): value for parts, value in await every(world, SLICE)},
            endpoints=endpoints,
            alive=dict.fromkeys(parts["node"] for parts, _ in await every(world, ALIVE)),
        )


async def unmet_blueprints(world: World, given_up: Collection[str] = ()) -> list[Unmet]:
    """Return everything that does not match the blueprints. `given_up`: slices whose last version must have failed."""
    if not world.plan.slices:
        return []
    state = await _State.read(world)
    instances: defaultdict[str, list[_Found]] = defaultdict(list)
    for (node, artifact), record in state.slices.items():
        for number, one in record.each().items():
            instances[base_of(artifact)].append(_Found(node, artifact, number, one))
    wanted = {spec.base: (name, spec) for name, blueprint in state.blueprints.items() for spec in blueprint.slices}
    found: list[Unmet] = []
    for base, (name, spec) in wanted.items():
        found += _slice(state, name, spec, instances.get(base, []), failed=base in given_up)
    for base in dict.fromkeys((*instances, *state.deployments, *state.owners)):
        if base not in wanted:
            some = len(instances.get(base, ()))
            found.append(_unmet(base, f"no blueprint names it; {some} instances, an owner or a deployment remain"))
    found += (*_endpoints(state), *_places(world, state))
    if found:
        return found
    members = {parts["node"]: value for parts, value in await every(world, MEMBER)}
    return [
        unmet
        for base, (_, spec) in wanted.items()
        if base not in given_up or state.deployments[base].previous
        for unmet in _left(world, state, spec, instances.get(base, []), members)
    ]


def _slice(state: _State, name: str, spec: SliceSpec, there: list[_Found], *, failed: bool) -> Iterator[Unmet]:
    base, deployment = spec.base, state.deployments.get(spec.base)
    if state.owners.get(base) != name:
        yield _unmet(base, f"blueprint {name} names it, but its owner is {state.owners.get(base, 'missing')}")
    if deployment is None:
        yield _unmet(base, "it has no deployment")
        return
    if (deployment.phase is Phase.FAILED) is not failed:
        verdict = "should have been given up" if failed else "was given up"
        yield _unmet(base, f"{deployment.artifact} {verdict}; it is {deployment.phase}: {deployment.why}")
        return
    if not failed and (deployment.phase is not Phase.DONE or deployment.artifact != spec.artifact):
        yield _unmet(base, f"the spec has {spec.artifact}; {deployment.artifact} is {deployment.phase}")
    artifact, template = spec.artifact, deployment.template
    if failed:
        artifact, template = deployment.previous, deployment.previous_template
        if not artifact:
            return  # no version served before
    number = spec.instances if deployment.scale is None else deployment.scale
    serving = [one for one in there if one.serves and one.artifact == artifact and one.one.template == template]
    if _is_moving(deployment, there, serving, number):
        return
    if len(serving) != number or len(there) != number:
        told = ", ".join(f"{one.artifact}#{one.number} {one.one.state} on {one.node}" for one in there[:6])
        text = f"{number} of {artifact} should serve; {len(serving)} do, of {len(there)} that exist: {told}"
        yield _unmet(base, text)
    total = sum(deployment.weights.values())
    if total and deployment.weights.get(artifact) != total:
        yield _unmet(base, f"calls go to {deployment.weights}, not all to {artifact}")


def _is_moving(deployment: Deployment, there: list[_Found], serving: list[_Found], number: int) -> bool:
    """Return whether the surplus instance belongs to a move of this slice.

    It is the new instance on the target of the stored move, or, when the move is no longer stored, the old one that
    leaves its node.
    """
    if len(there) != number + 1 or len(serving) < number:
        return False
    move = deployment.move
    if move is None:
        return len(serving) == number and any(not one.serves and one.one.why.startswith(MOVED) for one in there)
    nodes = [one.node for one in there if one.artifact == deployment.artifact]
    return len(nodes) == len(there) and move.source in nodes and move.target in nodes


def _left(
    world: World, state: _State, spec: SliceSpec, there: list[_Found], members: Mapping[str, NodeRecord]
) -> Iterator[Unmet]:
    """Return instances on nodes that they should have left."""

    def lacks(node: str) -> str:
        record = members.get(node)
        if record is None:
            return "not registered"
        if record.lifecycle is not Lifecycle.ON_DUTY:
            return str(record.lifecycle)
        missing = [name for name, value in spec.node_labels.items() if record.labels.get(name) != value]
        return f"without the label {missing[0]}" if missing else ""

    def takes(node: str) -> bool:
        host = world.blades.get(node)
        return node in state.alive and host is not None and host.runs and not lacks(node)

    for one in there:
        why = lacks(one.node)
        if why and (one.node not in members or members[one.node].lifecycle in (*_LEAVES, Lifecycle.ON_DUTY)):
            other = next((node for node in members if takes(node)), "")
            if other:
                yield _unmet(f"{one.artifact}#{one.number}", f"it is on {one.node}, which is {why}; {other} accepts it")
                return


def _endpoints(state: _State) -> Iterator[Unmet]:
    shown = dict(state.endpoints)
    for (node, artifact), record in state.slices.items():
        for number, one in record.each().items():
            endpoints = shown.pop((artifact, number), {})
            serves = one.state is SliceState.ACTIVE and one.ready
            nodes = dict.fromkeys(endpoint.node_id for endpoint in endpoints.values())
            if serves and (set(record.methods) != set(endpoints) or list(nodes) != [node]):
                yield _unmet(
                    f"{artifact}#{number}", f"it serves on {node}; its endpoints are {list(endpoints)} on {list(nodes)}"
                )
            elif not serves and node in nodes and not _is_of_a_move(state, node, artifact, one):
                yield _unmet(f"{artifact}#{number}", f"it is {one.state} on {node}, but has an endpoint there")
    for (artifact, number), endpoints in shown.items():
        nodes = dict.fromkeys(endpoint.node_id for endpoint in endpoints.values())
        yield _unmet(f"{artifact}#{number}", f"no such instance, but it has endpoints on {list(nodes)}")


def _is_of_a_move(state: _State, node: str, artifact: str, one: SliceInstance) -> bool:
    """Return whether it is the old instance of a move, not yet stopped by its agent, or the new one becoming active."""
    if one.state is SliceState.DEACTIVATE:
        return one.why.startswith(MOVED)
    deployment = state.deployments.get(base_of(artifact))
    move = None if deployment is None else deployment.move
    return one.state is SliceState.ACTIVATING and move is not None and move.target == node


def _places(world: World, state: _State) -> Iterator[Unmet]:
    """Compare the records with what runs on the blades."""
    for (node, artifact), record in state.slices.items():
        host = world.blades.get(node)
        if node not in state.alive or host is None or not host.runs:
            yield _unmet(artifact, f"it is {record.state} on {node}, which is dead")
    for node, host in world.blades.items():
        if not host.runs:
            continue
        runs = host.slices_there()
        for (artifact, number), life in runs.items():
            there = state.slices.get((node, artifact))
            if there is None or number not in there.each():
                yield _unmet(f"{artifact}#{number}", f"{node} runs it ({life}), but it has no key")
    for (node, artifact), record in state.slices.items():
        host = world.blades.get(node)
        runs = {} if host is None else host.slices_there()
        for number, one in record.each().items():
            if one.state is SliceState.ACTIVE and one.ready and runs.get((artifact, number)) is not Life.ACTIVE:
                told = runs.get((artifact, number), "not there")
                yield _unmet(f"{artifact}#{number}", f"{node} reports it active; its process is {told}")


def _unmet(what: str, text: str) -> Unmet:
    return Unmet(f"slice {what}", text, invariant=INVARIANT)
