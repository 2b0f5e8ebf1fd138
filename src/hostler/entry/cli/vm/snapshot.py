"""`hostler vm snapshot`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from hostler.entry.cli import show
from hostler.entry.cli.app import LazyGroup
from hostler.entry.cli.options import chosen_server, complete, project_options, read, server_options, with_client
from hostler.entry.cli.progress import ask_if_seen, yes_option
from hostler.entry.cli.show import moment
from hostler.entry.cli.vm.change import change_vm
from hostler.entry.cli.vm.wait import wait_options

if TYPE_CHECKING:
    from hostler.client import Client
    from hostler.model.vm_api import VmView

_HERE = __name__

COMMANDS = {
    "create": (_HERE, "create", "Take a snapshot."),
    "list": (_HERE, "list_", "List the snapshots of a machine."),
    "restore": (_HERE, "restore", "Restore a snapshot."),
    "delete": (_HERE, "delete", "Delete a snapshot."),
}


@click.group(cls=LazyGroup, commands_at=COMMANDS)
def snapshot() -> None:
    """Take, list, restore and delete snapshots of a machine."""


@click.command()
@click.argument("vm")
@click.argument("name")
@wait_options
@show.output_option
@project_options
@server_options
def create(*, vm: str, name: str, within: float | None, output: str, org: str, project: str) -> None:
    """Take the snapshot NAME of the machine VM."""

    async def change(client: Client) -> VmView:
        return await client.vms.snapshot(org, project, vm, name)

    complete(change_vm(chosen_server(), change, within, output, f"snapshot {name} will be taken"))


@click.command()
@click.argument("vm")
@click.argument("name")
@yes_option
@wait_options
@show.output_option
@project_options
@server_options
def restore(*, vm: str, name: str, yes: bool, within: float | None, output: str, org: str, project: str) -> None:
    """Restore the machine VM to its snapshot NAME. Later writes are lost. Asks for confirmation at a terminal."""
    ask_if_seen(f"Restore {show.safe(vm)} to {show.safe(name)}, and lose what was written since?", yes=yes)

    async def change(client: Client) -> VmView:
        return await client.vms.restore(org, project, vm, name)

    complete(change_vm(chosen_server(), change, within, output, f"will be restored to {name}", available=True))


@click.command()
@click.argument("vm")
@click.argument("name")
@yes_option
@wait_options
@show.output_option
@project_options
@server_options
def delete(*, vm: str, name: str, yes: bool, within: float | None, output: str, org: str, project: str) -> None:
    """Delete the snapshot NAME of the machine VM. Asks for confirmation at a terminal."""
    ask_if_seen(f"Delete the snapshot {show.safe(name)} of {show.safe(vm)}?", yes=yes)

    async def change(client: Client) -> VmView:
        return await client.vms.drop_snapshot(org, project, vm, name)

    complete(change_vm(chosen_server(), change, within, output, f"snapshot {name} will be deleted"))


@click.command("list")
@click.argument("vm")
@show.output_option
@project_options
@with_client
async def list_(client: Client, *, vm: str, output: str, org: str, project: str) -> None:
    """List the snapshots of the machine VM."""
    view = await read(client, lambda stale: client.vms.get(org, project, vm, stale=stale))
    if output != "table":
        show.emit(msgspec.to_builtins(view.snapshots), output)
        return
    found = [
        [show.safe(name), "requested", "", ""]
        if snap is None
        else [show.safe(name), snap.state.value, moment(snap.taken_at), show.safe(snap.detail)]
        for name, snap in sorted(view.snapshots.items())
    ]
    if found:
        show.Columns("NAME", "STATE", "TAKEN", "DETAIL").rows(found)
    else:
        click.echo(f"no snapshots; take one: hostler vm snapshot create {show.safe(vm)} NAME", err=True)
