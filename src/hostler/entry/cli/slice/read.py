"""`hostler slice artifacts`, `list`: commands that only read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from hostler.entry.cli import show
from hostler.entry.cli.failure import note
from hostler.entry.cli.server_options import PAGE, show_all, with_client
from hostler.entry.cli.value import moment
from hostler.model.deployment import SliceState

if TYPE_CHECKING:
    from hostler.client import Client
    from hostler.model.slice_api import ArtifactView, SliceInstanceView, SliceView

ARTIFACTS = ("ARTIFACT", "SIZE", "PUBLISHED", "SHA256", "NEEDS")
INSTANCES = ("ARTIFACT", "INSTANCE", "NODE", "STATE", "SINCE", "RESTARTS", "WHY")


@click.command()
@click.argument("base", required=False)
@show.output_option
@with_client
async def artifacts(client: Client, *, base: str | None, output: str) -> None:
    """List the published artifacts: all, or the versions of BASE, which is group:name."""
    found = [
        view
        async for view in client.artifacts.list(limit=PAGE)
        if base is None or view.artifact.rpartition(":")[0] == base
    ]
    none = f"no artifacts{f' of {base}' if base else ''}; publish one: hostler slice push"
    show_all(found, output, ARTIFACTS, _artifact_row, none)


def _artifact_row(view: ArtifactView) -> list[str]:
    cells = [view.artifact, str(view.size), moment(view.published_at), view.sha256[:12], ", ".join(view.requires)]
    return [show.safe(cell) for cell in cells]


@click.command("list")
@click.argument("base", required=False)
@click.option("--node", help="Only instances on this node.")
@show.output_option
@with_client
async def list_(client: Client, *, base: str | None, node: str | None, output: str) -> None:
    """List slice instances and their nodes: all, or those of BASE, which is group:name."""
    found = [view async for view in client.blueprints.slices(limit=PAGE, node=node, artifact=base)]
    why = "" if found else await _why_none(client, base, node)
    if output != "table":
        show.emit(msgspec.to_builtins(found), output)
    elif not found:
        note(why)
    else:
        rows = [(view, one) for view in found for one in view.instances]
        rows.sort(key=lambda row: (row[0].artifact, row[1].instance))
        show.Columns(*INSTANCES).rows([_row(view, one) for view, one in rows])


async def _why_none(client: Client, base: str | None, node: str | None) -> str:
    """Explain an empty list. NotFound: there is no such node."""
    if node is not None:
        node = (await client.nodes.get(node)).node
    on = "" if node is None else f" on {node}"
    if base is not None:
        wanted = base if base.count(":") < 2 else base.rpartition(":")[0]
        async for view in client.blueprints.list(limit=PAGE):
            if any(spec.base == wanted for spec in view.slices):
                return f"no instance of {base}{on}; see why: hostler blueprint status {view.name}"
        return f"no instance of {base}{on}: no blueprint has this slice; see hostler blueprint list"
    if node is not None:
        return f"no slices{on}; list all: hostler slice list"
    return "no slices; apply a blueprint: hostler blueprint apply FILE --name NAME"


def _row(view: SliceView, one: SliceInstanceView) -> list[str]:
    down = one.state is SliceState.ACTIVE and not one.ready
    state = f"{one.state.value}, restarting" if down else one.state.value
    cells = (view.artifact, str(one.instance), view.node, state, moment(one.since), str(one.restarts or ""), one.why)
    return [show.safe(cell) for cell in cells]
