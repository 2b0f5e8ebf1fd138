"""`hostler blueprint list`, `get`, `routes`, `history`: commands that only read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from hostler.entry.cli import show
from hostler.entry.cli.blueprint.render import version
from hostler.entry.cli.failure import note
from hostler.entry.cli.server_options import all_of, read, show_all, with_client
from hostler.entry.cli.value import moment
from hostler.model.deployment import Blueprint, base_of

if TYPE_CHECKING:
    from hostler.client import Client
    from hostler.model.blueprint_api import BlueprintView, RevisionView

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
