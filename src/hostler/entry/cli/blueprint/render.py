"""Text for blueprints, and waiting for a blueprint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hostler.entry.cli.failure import GivenUp
from hostler.entry.cli.wait import settled
from hostler.kit.plural import counted
from hostler.model.blueprint_api import BlueprintPhase, SliceChange

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hostler.client import Client
    from hostler.model.blueprint_api import BlueprintPlan, BlueprintStatus, Planned, SlicePlan, SliceStatus

SIGNS = {
    SliceChange.ADD: ("+", "green"),
    SliceChange.UPGRADE: ("~", "yellow"),
    SliceChange.SETTINGS: ("~", "yellow"),
    SliceChange.SCALE: ("~", "yellow"),
    SliceChange.CHANGE: ("~", "yellow"),
    SliceChange.REMOVE: ("-", "red"),
    SliceChange.KEEP: ("=", None),
}
NAMED = 8
"""Nodes that one line names at most."""


def version(artifact: str) -> str:
    """Return the version of an artifact: `1.0.0` of `org.example:cart:1.0.0`."""
    return artifact.rpartition(":")[2]


def ready(slices: Sequence[SliceStatus]) -> str:
    """Format ready instances of desired instances."""
    return f"{sum(one.ready for one in slices)}/{sum(one.wished for one in slices)}"


def described(status: BlueprintStatus) -> str:
    """Describe the state of the blueprint in a few words."""
    detail = f": {status.detail}" if status.detail else ""
    return f"{status.phase.value}, {ready(status.slices)} ready{detail}"


# Plans


def plan_lines(plan: BlueprintPlan) -> Iterator[tuple[SliceChange, str]]:
    """Yield a line for each slice, and below it the instances to load, unload and move."""
    for one in plan.slices:
        yield one.what, _headline(one)
        for what, text in _inside(one):
            yield SliceChange.KEEP, f"    {what:<7} {text}"


def _headline(one: SlicePlan) -> str:
    new, old = version(one.artifact), version(one.previous)
    name = f"{one.base} {f'{old} → {new}' if old and new and old != new else new or old}"
    number = one.instances if one.artifact else one.previous_instances
    times = f"× {number}"
    if one.what is SliceChange.SCALE or (one.artifact and one.previous and one.instances != one.previous_instances):
        times = f"× {one.previous_instances} → {one.instances}"
    said = {SliceChange.KEEP: "unchanged", SliceChange.CHANGE: "its instances stay", SliceChange.SETTINGS: one.how}
    text = said.get(one.what, one.how)
    return f"{name} {times}{f': {text}' if text else ''}"


def _inside(one: SlicePlan) -> Iterator[tuple[str, str]]:
    if one.load:
        yield "load", _places(one.load, one.to_load)
    if one.unload:
        yield "unload", _places(one.unload, one.to_unload)
    for move in one.move[:NAMED]:
        why = f" ({move.why})" if move.why else ""
        yield "move", f"{move.source} → {move.target}{f' × {move.instances}' if move.instances > 1 else ''}{why}"
    if len(one.move) > NAMED:
        yield "", f"and {counted(sum(move.instances for move in one.move[NAMED:]), 'more move')}"
    if one.waiting:
        why = "; ".join(f"{reason.subject}: {reason.why}" for reason in one.passed_over[:5])
        yield "wait", f"{counted(one.waiting, 'instance')}, because no node fits{f' ({why})' if why else ''}"


def _places(places: Sequence[Planned], count: int) -> str:
    named = [f"{place.node}{f' × {place.instances}' if place.instances > 1 else ''}" for place in places[:NAMED]]
    more = f", and on {counted(len(places) - NAMED, 'more node')}" if len(places) > NAMED else ""
    rest = count - sum(place.instances for place in places)
    return f"{', '.join(named)}{more}{f', … and {rest:,} more' if rest > 0 else ''}"


def plan_sum(plan: BlueprintPlan) -> str:
    """Summarize the plan in numbers."""
    load, unload = sum(one.to_load for one in plan.slices), sum(one.to_unload for one in plan.slices)
    move = sum(one.to_move for one in plan.slices)
    waiting = sum(one.waiting for one in plan.slices)
    numbers = ((load, "to load"), (unload, "to unload"), (waiting, "without a node"))
    said = ", ".join(f"{number} {what}" for number, what in numbers if number) or "no instances to load or unload"
    return f"{said}{f'; {move} of them move to another node' if move else ''}"


# Status


def states(counts: Mapping[str, int]) -> str:
    """Format the number of instances in each state: `3 active, 1 loading`."""
    return ", ".join(f"{number} {state.lower()}" for state, number in counts.items())


def step(one: SliceStatus) -> str:
    """Format the step and stage of an upgrade: `canary 2/3`."""
    if one.phase in (BlueprintPhase.READY, BlueprintPhase.WAITING, BlueprintPhase.FAILED, BlueprintPhase.REMOVING):
        return one.phase.value
    if one.step is None:
        return one.phase.value
    stage = f" {one.stage}/{one.stages}" if one.stage and one.stages else ""
    return f"{one.step.value.replace('_', ' ')}{stage}"


async def until(client: Client, name: str, *, gone: bool, within: float) -> BlueprintStatus | None:
    """Wait until the blueprint matches its spec, or until it is gone (None), and print the progress.

    NotYet: not in time, or it was deleted. GivenUp: the controller gave up a version.
    """
    status = await settled("blueprint", name, client.blueprints.wait, described, gone=gone, within=within)
    if status is not None and status.phase is BlueprintPhase.FAILED:
        raise GivenUp(f"blueprint {name}: {status.detail}; see hostler blueprint status {name}")
    return status
