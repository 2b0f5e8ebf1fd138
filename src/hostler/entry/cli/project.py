"""`hostler project`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from hostler.entry.cli import show
from hostler.entry.cli.app import LazyGroup
from hostler.entry.cli.server_options import chosen_server, org_option, reached, server_options
from hostler.entry.cli.store_option import complete
from hostler.entry.cli.value import moment

if TYPE_CHECKING:
    from hostler.entry.cli.server_options import Server

_HERE = "hostler.entry.cli.project"

COMMANDS = {
    "create": (_HERE, "create", "Create a project in an org."),
    "list": (_HERE, "list_", "List the projects that you can see."),
}


@click.group(cls=LazyGroup, commands_at=COMMANDS)
def project() -> None:
    """Create and list projects."""


@click.command()
@click.argument("name")
@org_option
@server_options
def create(name: str, org: str) -> None:
    """Create a project in an org.

    Needs the right manage_accounts, and membership in the org or in * (everything).
    """
    complete(_create(chosen_server(), org, name))


async def _create(server: Server, org: str, name: str) -> None:
    async with reached(server) as client:
        view = await client.projects.create(org, name)
    click.echo(f"{show.safe(view.org)}/{show.safe(view.name)}: created")


@click.command("list")
@show.output_option
@click.option("--org", help="Only projects of this org.")
@server_options
def list_(output: str, org: str | None) -> None:
    """List the projects that you can see."""
    complete(_list(chosen_server(), org, output))


async def _list(server: Server, org: str | None, output: str) -> None:
    async with reached(server) as client:
        found = await client.projects.list(org=org)
    if output != "table":
        show.emit(msgspec.to_builtins(found.items), output)
        return
    rows = [
        [show.safe(view.org), show.safe(view.name), moment(view.created_at) or "-", show.safe(view.created_by) or "-"]
        for view in found.items
    ]
    show.Columns("ORG", "PROJECT", "CREATED", "BY").rows(rows)
