"""`hostler vm update`, `start`, `stop`, `reset`, `delete`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec
from msgspec import UNSET

from hostler.entry.cli import show
from hostler.entry.cli.confirm import ask_if_seen, can_ask, yes_option
from hostler.entry.cli.failure import note
from hostler.entry.cli.server_options import chosen_server, project_options, reached, server_options
from hostler.entry.cli.store_option import complete
from hostler.entry.cli.value import Duration, Mebibytes, labels
from hostler.entry.cli.vm.wait import described, until_settled, wait_options
from hostler.model.vm import OnNodeLoss
from hostler.model.vm_api import VmUpdate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hostler.client import Client
    from hostler.entry.cli.server_options import Server
    from hostler.model.vm_api import VmCreate, VmView


async def created(
    server: Server, org: str, project: str, request: VmCreate, *, within: float | None, output: str
) -> None:
    """Create a machine; if `within` is given, wait for it up to that many seconds."""
    async with reached(server) as client:
        view = await client.vms.create(org, project, request)
        for warning in view.warnings:
            note(show.safe(f"{view.name}: {warning}"))
        await ended(client, view, within, output, f"created, {described(view)}", available=True)


async def changed(
    server: Server,
    change: Callable[[Client], Awaitable[VmView]],
    within: float | None,
    output: str,
    said: str,
    *,
    available: bool = False,
) -> None:
    """Change a machine; if `within` is given, wait for it up to that many seconds."""
    async with reached(server) as client:
        view = await change(client)
        await ended(client, view, within, output, said, available=available)


async def ended(
    client: Client, view: VmView, within: float | None, output: str, said: str, *, available: bool = False
) -> None:
    """Wait if `within` is given, and show the result. `available`: wait until its user can log in."""
    name = view.name
    now: VmView | None = view
    if within is not None:
        now = await until_settled(client, view, within=within, available=available)
        said = described(now) if now is not None else "gone"
    if output == "table":
        click.echo(f"{show.safe(name)}: {show.safe(said)}")
        if now is not None and now.at_next_boot:
            note(f"note: takes effect at the next boot: {', '.join(now.at_next_boot)}")
    else:
        show.emit(msgspec.to_builtins(now), output)


@click.command()
@click.argument("vm")
@click.option("--name", help="A new name.")
@click.option("--cpus", type=int, help="Cores, from the next boot on.")
@click.option("--memory", type=Mebibytes(), help="Memory, from the next boot on: 512M, 2G.")
@click.option("--disk", type=int, metavar="GIB", help="Disk size, from the next boot on. It can only grow.")
@click.option("-l", "--label", "label", multiple=True, metavar="NAME=VALUE", help="Replace all labels; repeatable.")
@click.option("--no-labels", is_flag=True, help="Remove all labels.")
@click.option("--ssh-key", "ssh_key", multiple=True, help="Replace all SSH keys: a public key, or @FILE; repeatable.")
@click.option("--expires", type=Duration(), help="Delete the machine after this time from now: 30m, 2h, 1d.")
@click.option("--never-expires", is_flag=True, help="Do not delete the machine automatically.")
@click.option("--on-node-loss", type=click.Choice([each.value for each in OnNodeLoss]), help="See vm create.")
@click.option("--if-revision", type=click.IntRange(min=1), help="Change it only if it still has this revision.")
@yes_option
@show.output_option
@project_options
@server_options
def update(*, vm: str, if_revision: int | None, yes: bool, output: str, org: str, project: str, **given: Any) -> None:
    """Change the machine VM. Options that are left out change nothing.

    CPUs, memory and disk of a running machine change at its next boot. At a terminal, --on-node-loss recreate lists the
    disk and the snapshots that are given up if the node is lost, and asks for confirmation.
    """
    request = _update(given)
    if request == VmUpdate():
        raise click.UsageError("nothing to change; hostler vm update --help lists the options")
    request.encode()

    if request.on_node_loss is OnNodeLoss.RECREATE and can_ask() and not yes:
        note(complete(_given_up(chosen_server(), org, project, vm)))
        question = f"Give that up and start {show.safe(vm)} elsewhere with a new disk if its node is lost?"
        ask_if_seen(question, yes=yes)

    async def change(client: Client) -> VmView:
        return await client.vms.update(org, project, vm, request, if_match=if_revision)

    complete(changed(chosen_server(), change, None, output, "changed"))


async def _given_up(server: Server, org: str, project: str, vm: str) -> str:
    from hostler.entry.cli.node import lost_with_node

    async with reached(server) as client:
        return lost_with_node(await client.vms.get(org, project, vm))


def _update(given: dict[str, Any]) -> VmUpdate:
    from hostler.entry.cli.vm.create import ssh_keys

    if given["no_labels"] and given["label"]:
        raise click.UsageError("--label and --no-labels exclude each other")
    if given["never_expires"] and given["expires"] is not None:
        raise click.UsageError("--expires and --never-expires exclude each other")

    def unless_none(value: Any) -> Any:
        return UNSET if value is None else value

    return VmUpdate(
        name=unless_none(given["name"]),
        cpus=unless_none(given["cpus"]),
        memory_mib=unless_none(given["memory"]),
        disk_gib=unless_none(given["disk"]),
        ssh_keys=ssh_keys(given["ssh_key"]) if given["ssh_key"] else UNSET,
        labels=labels(given["label"]) if given["label"] or given["no_labels"] else UNSET,
        on_node_loss=OnNodeLoss(given["on_node_loss"]) if given["on_node_loss"] else UNSET,
        expires_in=None if given["never_expires"] else unless_none(given["expires"]),
    )


def _power(verb: str, about: str, said: str) -> click.Command:
    @click.command(verb, help=about)
    @click.argument("vm")
    @wait_options
    @show.output_option
    @project_options
    @server_options
    def command(*, vm: str, waiting: bool, within: float, output: str, org: str, project: str) -> None:
        async def change(client: Client) -> VmView:
            asked: Callable[..., Awaitable[VmView]] = getattr(client.vms, verb)
            return await asked(org, project, vm)

        waits = within if waiting else None
        complete(changed(chosen_server(), change, waits, output, said, available=verb in ("start", "reset")))

    return command


start = _power("start", "Switch the machine VM on.", "will be started")
stop = _power("stop", "Shut the machine VM down. If it does not react in time, it is switched off.", "will be stopped")
reset = _power("reset", "Reset the machine VM, like its reset button.", "will be reset")


@click.command()
@click.argument("vm", nargs=-1, required=True)
@yes_option
@wait_options
@project_options
@server_options
def delete(*, vm: tuple[str, ...], yes: bool, waiting: bool, within: float, org: str, project: str) -> None:
    """Delete the machines VM, with their disks and snapshots. Asks for confirmation at a terminal."""
    ask_if_seen(f"Delete {', '.join(show.safe(each) for each in vm)} permanently?", yes=yes)
    complete(_delete(chosen_server(), org, project, vm, within if waiting else None))


async def _delete(server: Server, org: str, project: str, vms: tuple[str, ...], within: float | None) -> None:
    async with reached(server) as client:
        for vm in vms:
            view = await client.vms.delete(org, project, vm)
            if within is None:
                click.echo(f"{show.safe(vm)}: will be deleted")
                continue
            await until_settled(client, view, within=within, gone=True)
            click.echo(f"{show.safe(vm)}: deleted")
