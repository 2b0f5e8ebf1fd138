"""`hostler blueprint list`, `get`, `routes`, `history`: commands that only read; and the text of blueprints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from hostler.entry.cli import show
from hostler.entry.cli.failure import GivenUp, note
from hostler.entry.cli.options import all_of, read, show_all, with_client
from hostler.entry.cli.progress import wait_until_settled
from hostler.entry.cli.show import moment
from hostler.kit.plural import counted
from hostler.model.blueprint_api import BlueprintPhase, SliceChange
from hostler.model.deployment import Blueprint, base_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hostler.client import Client
    from hostler.model.blueprint_api import (
        BlueprintPlan,
        BlueprintStatus,
        BlueprintView,
        Planned,
        RevisionView,
        SlicePlan,
        SliceStatus,
    )


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
    status = await wait_until_settled("blueprint", name, client.blueprints.wait, described, gone=gone, within=within)
    if status is not None and status.phase is BlueprintPhase.FAILED:
        raise GivenUp(f"blueprint {name}: {status.detail}; see hostler blueprint status {name}")
    return status


HEADS = ("NAME", "NUMBER", "PHASE", "READY", "SLICES", "DETAIL")
ROUTES = ("VERB", "PATH", "SLICE", "METHOD", "CALLERS")
REVISIONS = ("NUMBER", "WHEN", "BY", "WHAT", "SLICES")


@click.command("list")
@show.output_option
@with_client
async def list_(client: Client, *, output: str) -> None:
    """List all blueprints."""
    found = [view async for view in all_of(client, client.blueprints.list)]
    show_all(found, output, HEADS, _row, "no blueprints; apply one: hostler blueprint apply FILE")


def _row(view: BlueprintView) -> list[str]:
    cells = [view.name, str(view.number), view.phase.value, f"{view.ready}/{view.instances}", str(len(view.slices))]
    firing = f"alerts: {', '.join(view.firing)}" if view.firing else ""
    return [show.safe(cell) for cell in (*cells, "; ".join(filter(None, (firing, view.detail))))]


@click.command()
@click.argument("name")
@click.option("--number", type=click.IntRange(min=1), help="The revision to show.  [default: the current one]")
@click.option(
    "-o",
    "--output",
    type=click.Choice(("json", "yaml")),
    default="json",
    show_default=True,
    help="The output format. As JSON it is a file that `hostler blueprint apply` reads.",
)
@with_client
async def get(client: Client, *, name: str, number: int | None, output: str) -> None:
    """Show the blueprint NAME in the form of a file."""
    from hostler.engine.deployments.blueprint_file import check_name, write_blueprint

    if number is None:
        slices = (await read(client, lambda stale: client.blueprints.get(name, stale=stale))).slices
    else:
        slices = (await client.blueprints.revision(name, number)).slices
    show.emit(write_blueprint(check_name(name), Blueprint(slices=slices)), output)


@click.command()
@click.argument("name")
@show.output_option
@with_client
async def routes(client: Client, *, name: str, output: str) -> None:
    """List the HTTP routes of the blueprint NAME: the path on the server, and the method that it calls."""
    view = await read(client, lambda stale: client.blueprints.get(name, stale=stale))
    found = []
    for spec in view.slices:
        for text, method in spec.routes.items():
            verb, _, path = text.partition(" ")
            called = {"slice": spec.base, "method": method, "callers": spec.callers.value}
            found.append({"verb": verb, "path": f"/v1/routes/{view.name}{path}", **called})
    if output != "table":
        show.emit(found, output)
    elif found:
        show.Columns(*ROUTES).rows([[show.safe(cell) for cell in one.values()] for one in found])
    else:
        note(f"{view.name}: no routes; add `routes` to its slices, see docs/invocation.md")


@click.command()
@click.argument("name")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Newest revisions.")
@show.output_option
@with_client
async def history(client: Client, *, name: str, limit: int, output: str) -> None:
    """List the revisions of NAME, newest first. To return to one: `hostler blueprint rollback --to NUMBER`."""
    page = await client.blueprints.history(name, limit=limit)
    if output != "table":
        show.emit(msgspec.to_builtins(list(page.items)), output)
        return
    show.Columns(*REVISIONS).rows([_revision(one) for one in page.items])
    if page.after is not None:
        note("there are older revisions; show more with --limit")


def _revision(one: RevisionView) -> list[str]:
    what = "deleted" if one.deleted else f"rolled back to {one.rollback_to}" if one.rollback_to else "applied"
    slices = ", ".join(
        f"{base_of(artifact).rpartition(':')[2]} {version(artifact)} × {count}"
        for artifact, count in one.artifacts.items()
    )
    cells = [f"{one.number}{' *' if one.current else ''}", moment(one.at), one.by, what, slices]
    return [show.safe(cell) for cell in cells]
