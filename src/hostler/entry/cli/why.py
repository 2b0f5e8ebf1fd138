"""`hostler why`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from hostler.entry.cli import show, tree
from hostler.entry.cli.server_options import chosen_server, project_options, reached, server_options
from hostler.entry.cli.store_option import complete

if TYPE_CHECKING:
    from hostler.entry.cli.server_options import Server
    from hostler.model.trace_api import WhyView


@click.command()
@click.argument("object_", metavar="OBJECT")
@click.option(
    "--limit", type=click.IntRange(1, tree.MOST), default=20, show_default=True, help="The largest number of steps."
)
@click.option("--reasons", is_flag=True, help="Also show the reasons that each decision weighed.")
@show.output_option
@project_options
@server_options
def why(*, object_: str, limit: int, reasons: bool, output: str, org: str, project: str) -> None:
    """Explain the state of OBJECT: each decision that led to it, newest first, down to the original request.

    OBJECT is vm/NAME (in --org and --project), vm/ORG/PROJECT/NAME, node/NAME, rack/NAME[/BLADE], lab/USER,
    workload/NAME[/NUMBER], blueprint/NAME or slice/GROUP:NAME; or a unique name or id of one of them.
    """
    complete(_why(chosen_server(), object_, limit, (org, project), reasons=reasons, output=output))


async def _why(server: Server, object_: str, limit: int, where: tuple[str, str], *, reasons: bool, output: str) -> None:
    async with reached(server) as client:
        found = await client.traces.why(object_, org=where[0], project=where[1], limit=limit)
    if output != "table":
        show.emit(msgspec.to_builtins(found), output)
        return
    click.echo(show.safe(_title(found)))
    if not found.steps:
        click.echo("└ no decisions are kept for it")
    for line, step in zip(tree.chained(found.steps, found.object), found.steps):
        click.echo(line)
        if reasons:
            for reason in step.reasons:
                click.echo(show.safe(f"│   {reason.subject}: {reason.why}"))
    if found.border:
        click.echo(show.safe(f"note: {found.border}"), err=True)
    if found.filed:
        click.echo(show.safe(f"note: {found.filed}"), err=True)
    if found.cut:
        click.echo(f"some steps in between are left out; {tree.more(limit)}", err=True)


def _title(found: WhyView) -> str:
    since = "" if found.since is None else f" since {tree.moment(found.since, day=tree.spans_days(found.steps))}"
    return f"{found.object} {found.state}{since}"
