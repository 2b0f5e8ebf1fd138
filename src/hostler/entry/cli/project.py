"""`hostler project` and `hostler quota`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from hostler.entry.cli import show
from hostler.entry.cli.app import LazyGroup
from hostler.entry.cli.options import (
    chosen_server,
    complete,
    open_client,
    org_option,
    project_options,
    server_options,
    with_client,
)
from hostler.entry.cli.show import Mebibytes, moment, size
from hostler.model.access_api import QuotaSet

if TYPE_CHECKING:
    from hostler.client import Client
    from hostler.entry.cli.options import Server
    from hostler.model.access_api import QuotaView


_HERE = __name__

PROJECT_COMMANDS = {
    "create": (_HERE, "create", "Create a project in an org."),
    "list": (_HERE, "list_", "List the projects that you can see."),
}


@click.group(cls=LazyGroup, commands_at=PROJECT_COMMANDS)
def project() -> None:
    """Create and list projects."""


@click.command()
@click.argument("name")
@org_option
@with_client
async def create(client: Client, *, name: str, org: str) -> None:
    """Create a project in an org.

    Needs the right manage_accounts, and membership in the org or in * (everything).
    """
    view = await client.projects.create(org, name)
    click.echo(f"{show.safe(view.org)}/{show.safe(view.name)}: created")


@click.command("list")
@show.output_option
@click.option("--org", help="Only projects of this org.")
@with_client
async def list_(client: Client, *, output: str, org: str | None) -> None:
    """List the projects that you can see."""
    found = await client.projects.list(org=org)
    if output != "table":
        show.emit(msgspec.to_builtins(found.items), output)
        return
    rows = [
        [show.safe(view.org), show.safe(view.name), moment(view.created_at) or "-", show.safe(view.created_by) or "-"]
        for view in found.items
    ]
    show.Columns("ORG", "PROJECT", "CREATED", "BY").rows(rows)


QUOTA_COMMANDS = {
    "show": (_HERE, "show_", "Show the limits and the usage of a project."),
    "set": (_HERE, "set_", "Set the limits of a project."),
    "remove": (_HERE, "remove", "Remove the limits of a project."),
}


@click.group(cls=LazyGroup, commands_at=QUOTA_COMMANDS)
def quota() -> None:
    """Show and set the quota of a project."""


_all = click.option("--all-projects", is_flag=True, help="The quota for all projects of the org together.")


@click.command("show")
@show.output_option
@_all
@project_options
@with_client
async def show_(client: Client, *, output: str, all_projects: bool, org: str, project: str) -> None:
    """Show the limits and the usage of a project."""
    project = "" if all_projects else project
    view = await client.quotas.get(org, project)
    if output != "table":
        show.emit(msgspec.to_builtins(view), output)
    else:
        _table(view)


def _table(view: QuotaView) -> None:
    used = view.used
    names = ("vms", "cpus", "memory", "disk")
    has_all = (str(view.used_vms), str(used.cpus), size(used.memory_mib), f"{used.disk_gib} GiB")
    rows = list(zip(names, has_all, _limits(view.limits), strict=True))
    if view.inherited == QuotaSet():
        show.Columns("OF", "USED", "LIMIT").rows([[name, has, limit or "none"] for name, has, limit in rows])
        return
    whole = _limits(view.inherited)
    shown = [
        [name, has, limit or "none", above or "none"] for (name, has, limit), above in zip(rows, whole, strict=True)
    ]
    show.Columns("OF", "USED", "LIMIT", "ORG LIMIT").rows(shown)


def _limits(limits: QuotaSet) -> list[str | None]:
    return [
        None if limits.vms is None else str(limits.vms),
        None if limits.cpus is None else str(limits.cpus),
        None if limits.memory_mib is None else size(limits.memory_mib),
        None if limits.disk_gib is None else f"{limits.disk_gib} GiB",
    ]


@click.command("set")
@click.option("--vms", type=click.IntRange(min=0), help="Number of machines.")
@click.option("--cpus", type=click.IntRange(min=0), help="Cores of all machines.")
@click.option("--memory", type=Mebibytes(), help="Memory of all machines: 512M, 64G.")
@click.option("--disk", type=click.IntRange(min=0), metavar="GIB", help="Disk of all machines.")
@_all
@project_options
@server_options
def set_(
    *,
    vms: int | None,
    cpus: int | None,
    memory: int | None,
    disk: int | None,
    all_projects: bool,
    org: str,
    project: str,
) -> None:
    """Set the limits of a project. Resources that are left out have no limit.

    With --all-projects, the limits apply to all projects of the org together; this needs membership in * (everything).
    """
    wanted = QuotaSet(vms=vms, cpus=cpus, memory_mib=memory, disk_gib=disk)
    if wanted == QuotaSet():
        raise click.UsageError("give a limit: --vms, --cpus, --memory, --disk; hostler quota remove removes all limits")
    wanted.encode()
    complete(_set(chosen_server(), org, "" if all_projects else project, wanted))


async def _set(server: Server, org: str, project: str, wanted: QuotaSet) -> None:
    async with open_client(server) as client:
        _table(await client.quotas.set(org, project, wanted))


@click.command()
@_all
@project_options
@with_client
async def remove(client: Client, *, all_projects: bool, org: str, project: str) -> None:
    """Remove the limits of a project."""
    project = "" if all_projects else project
    await client.quotas.delete(org, project)
    click.echo(f"{show.safe(org)}{f'/{show.safe(project)}' if project else ''}: no limits")
