"""`hostler node`."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import click
import msgspec

from hostler.entry.cli import show
from hostler.entry.cli.app import LazyGroup
from hostler.entry.cli.failure import NotYet, note
from hostler.entry.cli.options import (
    all_of,
    chosen_server,
    complete,
    open_client,
    read,
    server_options,
    show_all,
    with_client,
)
from hostler.entry.cli.progress import ask, ask_if_seen, check_can_ask, yes_option
from hostler.entry.cli.show import capacity, label_text, moment, span
from hostler.entry.cli.vm.retained import given_up
from hostler.entry.cli.vm.wait import PhaseProgress, wait_options
from hostler.errors import Unavailable
from hostler.kit.plural import counted
from hostler.model.inventory_api import Drain
from hostler.model.name import fold
from hostler.model.node import DrainMode, Lifecycle

if TYPE_CHECKING:
    from hostler.client import Client
    from hostler.entry.cli.options import Server
    from hostler.model.inventory_api import NodeView
    from hostler.model.vm_api import RetainedView, VmView

_HERE = __name__

COMMANDS = {
    "list": (_HERE, "list_", "List the nodes and their usage."),
    "show": (_HERE, "show_", "Show one node."),
    "drain": (_HERE, "drain", "Empty a node, machine by machine."),
    "activate": (_HERE, "activate", "Return a node to service."),
    "confirm-off": (
        _HERE,
        "confirm_off",
        "Confirm that an unreachable node is off: its machines start elsewhere, with new disks.",
    ),
    "brake": (_HERE, "brake", "Show and release the brake on mass failure."),
    "remove": (_HERE, "remove", "Remove the record of a node that is empty or gone."),
}
BRAKE_COMMANDS = {
    "show": (_HERE, "show_brake", "Show whether the brake holds, and why."),
    "release": (_HERE, "release_brake", "Allow fencing of the nodes that hold the brake."),
}
HEADS = ("NODE", "STATE", "VMS", "CPUS", "MEMORY", "DISK", "RACK", "LABELS")


@click.group(cls=LazyGroup, commands_at=COMMANDS)
def node() -> None:
    """Show, drain and repair nodes."""


@click.command("list")
@show.output_option
@with_client
async def list_(client: Client, *, output: str) -> None:
    """List the nodes and their usage."""
    found = await nodes(client)
    show_all(found, output, HEADS, _row, "no nodes; start an agent: hostler agent --node NAME")


async def nodes(client: Client) -> list[NodeView]:
    return [view async for view in all_of(client, client.nodes.list)]


def state(view: NodeView) -> str:
    """Describe the lifecycle state of a node and whether it is reachable, in a few words."""
    if not view.alive:
        if view.off is not None:
            return "off (confirmed)"
        return "awaited" if view.awaited else f"unreachable ({view.lifecycle.words})"
    mode = f" ({view.drain.value})" if view.lifecycle is Lifecycle.DRAINING else ""
    return view.lifecycle.words + mode + (", not accepting" if view.refuses or view.objection else "")


def _row(view: NodeView) -> list[str]:
    cells = [view.node, state(view), str(view.vms), *capacity(view.used, view.capacity)]
    return [show.safe(cell) for cell in (*cells, view.rack or "", label_text(view.labels))]


@click.command("show")
@click.argument("node")
@show.output_option
@with_client
async def show_(client: Client, *, node: str, output: str) -> None:
    """Show the node NODE."""
    view = await read(client, lambda stale: client.nodes.get(node, stale=stale))
    if output != "table":
        show.emit(msgspec.to_builtins(view), output)
        return
    cpus, memory, disk = capacity(view.used, view.capacity)
    rows = [
        ("NODE", view.node),
        ("STATE", state(view)),
        ("VMS", str(view.vms)),
        ("CPUS", cpus),
        ("MEMORY", memory),
        ("DISK", disk),
        ("RACK", view.rack or ""),
        ("PDUS", ", ".join(view.pdus)),
        ("TORS", ", ".join(view.tors)),
        ("LABELS", label_text(view.labels)),
        ("MACHINES", view.driver),
        ("FENCES", "yes" if view.fences else "no"),
        ("MOVES", "yes" if view.moves else "no"),
        ("NOT ACCEPTING", "; ".join(filter(None, (view.refuses, view.objection)))),
        ("IMAGES", "any" if view.images is None else ", ".join(filter(None, view.images)) or "none"),
        *((name.upper(), fact) for name, fact in sorted(view.facts.items())),
        ("ADDRESS", view.address),
        ("OFF", "" if view.off is None else f"confirmed by {view.off.by}, {moment(view.off.at)}"),
        ("REGISTERED", moment(view.registered_at)),
        ("REVISION", str(view.revision)),
    ]
    show.pairs([(name, show.safe(text)) for name, text in rows if text])


@click.command()
@click.argument("node")
@click.option(
    "--mode",
    type=click.Choice([mode.value for mode in DrainMode]),
    default=DrainMode.MOVE.value,
    show_default=True,
    help="move: migrate each machine live if both nodes support it, otherwise recreate it elsewhere from its image."
    " stop: stop each machine and keep it on the node.",
)
@click.option("--drop-snapshots", is_flag=True, help="Also move machines with snapshots; their snapshots are lost.")
@wait_options
@server_options
def drain(node: str, mode: str, drop_snapshots: bool, within: float | None) -> None:
    """Empty the node NODE, one machine at a time. `hostler node activate` returns it to service.

    A machine that is recreated elsewhere gets a new disk from its image; its old disk is retained on NODE.
    """
    how = Drain(mode=DrainMode(mode), drop_snapshots=drop_snapshots)
    complete(_drain(chosen_server(), node, how, within))


async def _drain(server: Server, node: str, how: Drain, within: float | None) -> None:
    mode = how.mode
    async with open_client(server) as client:
        await client.nodes.drain(node, how)
        if within is not None:
            await _until_drained(client, node, mode, within)
    click.echo(f"{show.safe(node)}: {'drained' if within is not None else 'will be drained'}")


async def _until_drained(client: Client, node: str, mode: DrainMode, within: float) -> None:
    started = time.monotonic()
    last = ""
    with PhaseProgress(node) as telling:
        while True:
            try:
                left = await _count_left(client, node, mode)
                last = f"{counted(left, 'machine')} left"
                if not left:
                    return
            except Unavailable as error:
                last = f"waiting: {error}"
            telling.tell(last)
            if time.monotonic() - started > within:
                raise NotYet(
                    f"node {node}: not drained after {span(within)} ({last}); it continues: hostler node show {node}"
                )
            await asyncio.sleep(0.5)


async def _count_left(client: Client, node: str, mode: DrainMode) -> int:
    """Return the number of machines that the drain has still to move or stop."""
    if mode is DrainMode.MOVE:
        return (await client.nodes.get(node)).vms
    from hostler.entry.cli.vm.read import machines
    from hostler.model.vm_api import VmPhase

    still = [each async for each in machines(client, (None, None), {}) if each.node == fold(node)]
    return sum(each.phase is not VmPhase.STOPPED for each in still)


@click.command()
@click.argument("node")
@with_client
async def activate(client: Client, *, node: str) -> None:
    """Return the node NODE to service."""
    view = await client.nodes.activate(node)
    click.echo(f"{show.safe(node)}: {state(view)}")


@click.command("confirm-off")
@click.argument("node")
@yes_option
@server_options
def confirm_off(node: str, yes: bool) -> None:
    """Confirm that the unreachable node NODE is switched off, so that its machines are started elsewhere.

    They start elsewhere with new disks, made from their images. The disks and snapshots on NODE are given up; they are
    listed before you are asked. Check the node first: if it still runs, its machines will run twice.
    """
    check_can_ask(yes=yes, question=f"Is {show.safe(node)} switched off?")
    server = chosen_server()
    given_up = complete(_given_up(server, node))
    for line in given_up:
        note(line)
    disks = "The disks and snapshots above are given up, and its" if given_up else "Its"
    question = f"Is {show.safe(node)} switched off? {disks} machines start elsewhere; if it is on, they run twice."
    ask(question, yes=yes)
    complete(_confirm_off(server, node))


async def _given_up(server: Server, node: str) -> list[str]:
    """Return a line for each machine of the node: what is lost if the node does not come back."""
    from hostler.entry.cli.vm.read import machines

    async with open_client(server) as client:
        total = (await client.nodes.get(node)).vms
        found = [view async for view in machines(client, (None, None), {}) if fold(view.node or "") == fold(node)]
    lines = [lost_with_node(view) for view in found]
    if hidden := max(0, total - len(found)):
        lines.append(f"{counted(hidden, 'more machine')} with disks, in projects that you cannot see")
    return [f"on {show.safe(node)}: {line}" for line in lines]


def lost_with_node(view: VmView) -> str:
    """Describe what is lost of a machine if its node does not come back."""
    taken = sorted(name for name, snapshot in view.snapshots.items() if snapshot is not None)
    snapshots = f", snapshots {', '.join(taken)}" if taken else ", no snapshots"
    size = f" of {view.spec.disk_gib} GiB" if view.spec.disk_gib else ""
    loss = f"on_node_loss={view.on_node_loss.value}"
    return show.safe(f"{view.org}/{view.project}/{view.name} ({view.phase.value}, {loss}): its disk{size}{snapshots}")


async def _confirm_off(server: Server, node: str) -> None:
    async with open_client(server) as client:
        await client.nodes.confirm_off(node)
    click.echo(f"{show.safe(node)}: confirmed to be off; its machines will be started elsewhere, with new disks")


@click.group(cls=LazyGroup, commands_at=BRAKE_COMMANDS)
def brake() -> None:
    """Show and release the brake on mass failure.

    When many nodes become unreachable together, none is switched off and no machine is started elsewhere.
    """


@click.command("show")
@show.output_option
@with_client
async def show_brake(client: Client, *, output: str) -> None:
    """Show whether the brake holds, because of which nodes, and what they have in common."""
    view = await client.nodes.brake()
    if output != "table":
        show.emit(msgspec.to_builtins(view), output)
        return
    rows = [
        ("HELD", "yes" if view.held else "no"),
        ("NODES", ", ".join(view.nodes)),
        ("OF", str(view.of or "")),
        ("COMMON CAUSE", view.cause),
        ("SINCE", "" if view.since is None else moment(view.since)),
        ("RELEASED", "" if view.released_at is None else f"by {view.released_by}, {moment(view.released_at)}"),
    ]
    show.pairs([(name, show.safe(text)) for name, text in rows if text])


@click.command("release")
@yes_option
@with_client
async def release_brake(client: Client, *, yes: bool) -> None:
    """Allow fencing of the nodes that hold the brake, one at a time.

    Nodes are switched off where a power command is set, and their machines start elsewhere with new disks. Check the
    common cause first (hostler node brake show): a node that comes back by itself keeps its machines and disks.
    """
    view = await client.nodes.brake()
    if view.held:
        lost = f"{counted(len(view.nodes), 'node')} ({show.safe(', '.join(view.nodes))})"
        ask(f"Fence {lost}? Their machines start elsewhere, and may lose their disks.", yes=yes)
    await client.nodes.release_brake(if_match=view.revision or None)
    click.echo("brake: released; the nodes are fenced one at a time")


@click.command()
@click.argument("node")
@yes_option
@server_options
def remove(node: str, yes: bool) -> None:
    """Remove the record of the node NODE, which must be decommissioned, or unreachable and without machines.

    Retained machines of NODE are listed before you are asked. Their records are removed with the node; their disks
    stay in its folder, and the records return if its agent registers again.
    """
    server = chosen_server()
    retained = complete(_retained_on(server, node))
    for view in retained:
        note(f"on {show.safe(node)}: {show.safe(given_up(view))}")
    if retained:
        kept = counted(len(retained), "retained machine")
        ask(f"Remove the node {show.safe(node)} and its {kept}? The disks stay in its folder.", yes=yes)
    else:
        ask_if_seen(f"Remove the node {show.safe(node)}?", yes=yes)
    complete(_remove(server, node, forget_retained=bool(retained)))


async def _retained_on(server: Server, node: str) -> list[RetainedView]:
    async with open_client(server) as client:
        found = (await client.retained.list()).items
    return [view for view in found if fold(view.node) == fold(node)]


async def _remove(server: Server, node: str, *, forget_retained: bool) -> None:
    async with open_client(server) as client:
        await client.nodes.forget(node, forget_retained=forget_retained)
    click.echo(f"{show.safe(node)}: removed")
