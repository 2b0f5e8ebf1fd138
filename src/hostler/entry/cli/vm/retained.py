"""`hostler vm retained`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from hostler.entry.cli import show
from hostler.entry.cli.app import LazyGroup
from hostler.entry.cli.options import chosen_server, complete, server_options, with_client
from hostler.entry.cli.progress import ask, yes_option
from hostler.entry.cli.show import moment, size
from hostler.entry.cli.vm.change import change_vm
from hostler.entry.cli.vm.wait import wait_options
from hostler.errors import Invalid, NotFound
from hostler.kit.plural import counted

if TYPE_CHECKING:
    from hostler.client import Client
    from hostler.model.vm_api import RetainedView, VmView

_HERE = __name__

COMMANDS = {
    "list": (_HERE, "list_", "List the retained machines."),
    "show": (_HERE, "show_", "Show a retained machine."),
    "restore": (_HERE, "restore", "Restore a machine to a retained disk, or create a new machine from it."),
    "delete": (_HERE, "delete", "Delete a retained machine permanently."),
}


@click.group(cls=LazyGroup, commands_at=COMMANDS)
def retained() -> None:
    """List, restore and delete machines that are out of service.

    If a node has a machine that is not assigned to it, the machine is stopped and retained with its disk and snapshots.
    A retained machine is identified by NAME, or NODE/NAME.
    """


@click.command("list")
@show.output_option
@with_client
async def list_(client: Client, *, output: str) -> None:
    """List the retained machines, and how long they are kept."""
    page = await client.retained.list()
    if output != "table":
        show.emit(msgspec.to_builtins(page.items), output)
        return
    if not page.items:
        click.echo("no retained machines", err=True)
        return
    show.Columns("NAME", "VM", "PROJECT", "NODE", "RETAINED", "UNTIL", "DISK").rows(
        [
            [
                show.safe(each.name),
                show.safe(each.vm_name or each.vm),
                show.safe(f"{each.org}/{each.project}"),
                show.safe(each.node),
                moment(each.retained_at),
                until(each),
                disk(each),
            ]
            for each in page.items
        ]
    )


@click.command("show")
@click.argument("name")
@show.output_option
@with_client
async def show_(client: Client, *, name: str, output: str) -> None:
    """Show the retained machine NAME."""
    found = await find(client, name)
    if output != "table":
        show.emit(msgspec.to_builtins(found), output)
        return
    lines = [
        ("NAME", found.name),
        ("NODE", found.node + ("" if found.alive else " (unreachable)")),
        ("VM", f"{found.vm_name or found.vm} ({found.vm})"),
        ("PROJECT", f"{found.org}/{found.project}"),
        ("SIZE", f"{counted(found.cpus, 'cpu')}, {size(found.memory_mib)} memory, {found.disk_gib} GiB disk"),
        ("IMAGE", found.image),
        ("DISK", disk(found)),
        ("SNAPSHOTS", ", ".join(found.snapshots)),
        ("RETAINED", moment(found.retained_at)),
        ("UNTIL", until(found)),
    ]
    show.pairs([(key, show.safe(text)) for key, text in lines if text])


@click.command()
@click.argument("name")
@click.option("--as", "as_name", metavar="VM", help="Create a new machine with this name.")
@wait_options
@show.output_option
@server_options
def restore(*, name: str, as_name: str | None, within: float | None, output: str) -> None:
    """Restore the virtual machine of the retained machine NAME to its disk, on the node that has it.

    If the virtual machine has a newer disk, or was deleted, use --as to create a new machine from the retained disk.
    """

    async def change(client: Client) -> VmView:
        found = await find(client, name)
        return await client.retained.restore(found.node, found.name, as_name=as_name)

    complete(change_vm(chosen_server(), change, within, output, "will have its retained disk"))


@click.command()
@click.argument("name")
@yes_option
@show.output_option
@with_client
async def delete(client: Client, *, name: str, yes: bool, output: str) -> None:
    """Delete the retained machine NAME with its disk and snapshots permanently. Needs an administrator."""
    found = await find(client, name)
    question = f"Delete {given_up(found)} permanently?"
    if found.lost:
        question = f"Delete the record of {given_up(found)}? The disk stays where it is: {found.lost}."
    needed = f" vm {found.kept_for} has no newer disk." if found.kept_for else ""
    ask(show.safe(question + needed), yes=yes)
    view = await client.retained.delete(found.node, found.name)
    if output != "table":
        show.emit(msgspec.to_builtins(view), output)
    elif view.lost:
        click.echo(f"{show.safe(view.name)}: its record is deleted; the disk stays where it is: {show.safe(view.lost)}")
    elif view.alive:
        click.echo(f"{show.safe(view.name)}: node {show.safe(view.node)} deletes it")
    else:
        click.echo(f"{show.safe(view.name)}: node {show.safe(view.node)} deletes it when it can be reached")


async def find(client: Client, name: str) -> RetainedView:
    """Return the retained machine of that name. NotFound: there is none. Invalid: several nodes have one."""
    node, slash, rest = name.partition("/")
    if slash:
        return await client.retained.get(node, rest)
    found = [each for each in (await client.retained.list()).items if each.name == name]
    if not found:
        raise NotFound(f"retained machine {name}: not found; list them: hostler vm retained list")
    if len(found) > 1:
        nodes = ", ".join(f"{each.node}/{name}" for each in found)
        raise Invalid(f"retained machine {name}: several nodes have one; name one of {nodes}")
    return found[0]


def given_up(view: RetainedView) -> str:
    """Describe the disk and snapshots of a retained machine."""
    size_ = f" ({disk(view)})" if view.disk_bytes else ""
    snapshots = f", snapshots {', '.join(view.snapshots)}" if view.snapshots else ", no snapshots"
    whose = f"{view.org}/{view.project}/{view.vm_name or view.vm}"
    return f"{whose}: the disk{size_} of retained machine {view.node}/{view.name}{snapshots}"


def until(view: RetainedView) -> str:
    """Describe how long the machine is kept."""
    if view.deleting:
        return "being deleted"
    if view.lost:
        return f"cannot be restored: {view.lost}"
    return f"as long as {view.kept_for} has no newer disk" if view.kept_for else moment(view.until)


def disk(view: RetainedView) -> str:
    """Format the size of its disk."""
    return size(-(-view.disk_bytes // 2**20)) if view.disk_bytes else ""
