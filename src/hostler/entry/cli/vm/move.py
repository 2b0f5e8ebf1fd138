"""`hostler vm migrate` and `vm clone`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from hostler.entry.cli import show
from hostler.entry.cli.failure import NotYet, note
from hostler.entry.cli.server_options import chosen_server, project_options, reached, server_options
from hostler.entry.cli.store_option import complete
from hostler.entry.cli.value import Mebibytes
from hostler.entry.cli.vm.change import ended
from hostler.entry.cli.vm.wait import described, until_settled, wait_options
from hostler.errors import Conflict, HostlerError
from hostler.model.name import fold
from hostler.model.vm import SnapshotState

if TYPE_CHECKING:
    from hostler.client import Client
    from hostler.entry.cli.server_options import Server
    from hostler.model.api import VmView


@click.command()
@click.argument("vm")
@click.option("--to", "node", required=True, metavar="NODE", help="The node that it shall be on.")
@click.option(
    "--stop", is_flag=True, help="Where it cannot be moved as it runs: stop it, move its disk, start it there."
)
@click.option("--drop-snapshots", is_flag=True, help="Move it although it has snapshots: they are lost.")
@wait_options
@show.output_option
@project_options
@server_options
def migrate(
    *, vm: str, node: str, waiting: bool, within: float, output: str, org: str, project: str, **how: Any
) -> None:
    """Bring the machine VM to the node NODE, as it runs: what is open to it stays open.

    Its snapshots do not move with it: a machine that has some is not moved without --drop-snapshots.

    \b
    hostler vm migrate web --to rack1-blade3 --wait
    """
    complete(_migrate(chosen_server(), (org, project), vm, node, how, within if waiting else None, output))


async def _migrate(  # noqa: PLR0917 - what, where to, and how to tell
    server: Server, place: tuple[str, str], vm: str, node: str, how: dict[str, Any], within: float | None, output: str
) -> None:
    async with reached(server) as client:
        view = await client.vms.move(*place, vm, node, **how)
        if within is not None:
            began = time.monotonic()
            now = await until_settled(client, view, within=within, moving=not how["stop"])
            if now is not None:
                if fold(now.node or "") != fold(node):
                    raise NotYet(f"vm {view.name}: it was not moved, and is {described(now)}")
                note(f"{view.name}: moved after {time.monotonic() - began:.1f} s")
                view = now
        await ended(client, view, None, output, f"on {view.node}" if within is not None else f"will be moved to {node}")


@click.command()
@click.argument("vm")
@click.argument("new")
@click.option("--snapshot", metavar="NAME", help="The snapshot of VM that its disk begins as.")
@click.option("--now", is_flag=True, help="Take a snapshot for it first; it stays, and more can be made of it.")
@click.option("--cpus", type=int, help="Other than those of VM.")
@click.option("--memory", type=Mebibytes(), help="Other than that of VM: 512M, 2G.")
@wait_options
@show.output_option
@project_options
@server_options
def clone(
    *,
    vm: str,
    new: str,
    snapshot: str | None,
    now: bool,
    waiting: bool,
    within: float,
    output: str,
    org: str,
    project: str,
    **shape: Any,
) -> None:
    """Make the machine NEW, whose disk begins as a snapshot of the machine VM. It is somebody of its own: name, keys
    and addresses are new.

    \b
    hostler vm clone web web2 --now --wait
    hostler vm clone db test --snapshot monday
    """
    if now == (snapshot is not None):
        raise click.UsageError("say of what: --snapshot NAME, or --now")
    changes = {
        field: value for field, value in (("cpus", shape["cpus"]), ("memory_mib", shape["memory"])) if value is not None
    }
    work = _clone(chosen_server(), (org, project), vm, new, snapshot, changes, within, waiting=waiting, output=output)
    complete(work)


async def _clone(  # noqa: PLR0917 - what, of what, and how to tell
    server: Server,
    place: tuple[str, str],
    vm: str,
    new: str,
    snapshot: str | None,
    changes: dict[str, Any],
    within: float,
    *,
    waiting: bool,
    output: str,
) -> None:
    async with reached(server) as client:
        taken = snapshot or await _snapshot(client, place, vm, within)
        try:
            view = await client.vms.clone(*place, vm, taken, new, **changes)
        except HostlerError:
            if snapshot is None:
                note(f"the snapshot {taken} stays: hostler vm snapshot delete {vm} {taken}")
            raise
        said = f"will be made of snapshot {taken} of {vm}"
        await ended(client, view, within if waiting else None, output, said, available=True)


async def _snapshot(client: Client, place: tuple[str, str], vm: str, within: float) -> str:
    """A new one, once it is there."""
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
