"""`hostler vm migrate` and `vm clone`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from hostler.entry.cli import show
from hostler.entry.cli.failure import NotYet, note
from hostler.entry.cli.options import chosen_server, complete, open_client, project_options, server_options, with_client
from hostler.entry.cli.show import Mebibytes
from hostler.entry.cli.vm.change import show_result
from hostler.entry.cli.vm.wait import described, until_settled, wait_flags, wait_options
from hostler.errors import Conflict, HostlerError
from hostler.model.name import fold
from hostler.model.vm import SnapshotState

if TYPE_CHECKING:
    from hostler.client import Client
    from hostler.entry.cli.options import Server
    from hostler.model.vm_api import VmView


@click.command()
@click.argument("vm")
@click.option("--to", "node", required=True, metavar="NODE", help="The target node.")
@click.option(
    "--stop", is_flag=True, help="If live migration is not possible: stop it, move its disk, and start it there."
)
@click.option("--drop-snapshots", is_flag=True, help="Migrate although it has snapshots; the snapshots are lost.")
@wait_options
@show.output_option
@project_options
@with_client
async def migrate(client: Client, /, *, vm: str, node: str, within: float | None, output: str, **how: Any) -> None:
    """Migrate the running machine VM to the node NODE. Its open connections stay open.

    Snapshots do not move with the machine: a machine with snapshots is migrated only with --drop-snapshots.

    \b
    hostler vm migrate web --to rack1-blade3 --wait
    """
    place = how.pop("org"), how.pop("project")
    view = await client.vms.move(*place, vm, node, **how)
    if within is not None:
        began = time.monotonic()
        now = await until_settled(client, view, within=within, moving=not how["stop"])
        if now is not None:
            if fold(now.node or "") != fold(node):
                raise NotYet(f"vm {view.name}: it was not moved, and is {described(now)}")
            note(f"{view.name}: moved after {time.monotonic() - began:.1f} s")
            view = now
    await show_result(
        client, view, None, output, f"on {view.node}" if within is not None else f"will be moved to {node}"
    )


@click.command()
@click.argument("vm")
@click.argument("new")
@click.option("--snapshot", metavar="NAME", help="The snapshot of VM to create the disk from.")
@click.option("--now", is_flag=True, help="Take a new snapshot first. It is kept, and can be used for more clones.")
@click.option("--cpus", type=int, help="Cores. Default: as VM.")
@click.option("--memory", type=Mebibytes(), help="Memory: 512M, 2G. Default: as VM.")
@wait_flags
@show.output_option
@project_options
@server_options
def clone(*, vm: str, new: str, now: bool, org: str, project: str, **options: Any) -> None:
    """Create the machine NEW with a disk from a snapshot of the machine VM. It gets a new name, keys and addresses.

    \b
    hostler vm clone web web2 --now --wait
    hostler vm clone db test --snapshot monday
    """
    if now == (options["snapshot"] is not None):
        raise click.UsageError("give the source: --snapshot NAME, or --now")
    complete(_clone(chosen_server(), (org, project), vm, new, options))


async def _clone(server: Server, place: tuple[str, str], vm: str, new: str, options: dict[str, Any]) -> None:
    snapshot, within, shape = options["snapshot"], options["within"], (options["cpus"], options["memory"])
    changes = {field: value for field, value in zip(("cpus", "memory_mib"), shape) if value is not None}
    async with open_client(server) as client:
        taken = snapshot or await _snapshot(client, place, vm, within)
        try:
            view = await client.vms.clone(*place, vm, taken, new, **changes)
        except HostlerError:
            if snapshot is None:
                note(f"the snapshot {taken} is kept; to delete it: hostler vm snapshot delete {vm} {taken}")
            raise
        said = f"will be created from snapshot {taken} of {vm}"
        within = within if options["waiting"] else None
        await show_result(client, view, within, options["output"], said, available=True)


async def _snapshot(client: Client, place: tuple[str, str], vm: str, within: float) -> str:
    """Take a snapshot, wait until it is ready, and return its name."""
    name = time.strftime("clone-%Y%m%d-%H%M%S", time.gmtime())
    view: VmView | None = await client.vms.snapshot(*place, vm, name)
    if view is not None:
        view = await until_settled(client, view, within=within)
    found = None if view is None else view.snapshots.get(name)
    if found is None or found.state is not SnapshotState.READY:
        why = "" if found is None else f": {found.detail}"
        raise Conflict(f"vm {vm}: its snapshot {name} could not be taken{why}; see its detail: hostler vm show {vm}")
    note(f"{vm}: snapshot {name} taken")
    return name
