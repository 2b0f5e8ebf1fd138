"""`hostler vm list`, `show`, `why`: commands that only read."""

from __future__ import annotations

import asyncio
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import msgspec

from hostler.entry.cli import show
from hostler.entry.cli.options import (
    all_of,
    chosen_server,
    complete,
    open_client,
    project_options,
    read,
    server_options,
    show_all,
    with_client,
)
from hostler.entry.cli.show import label_text, labels, moment, size, span
from hostler.entry.cli.vm.wait import ready
from hostler.errors import Unavailable
from hostler.kit.plural import counted
from hostler.model.vm_api import VmPhase

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hostler.client import Client
    from hostler.entry.cli.options import Server
    from hostler.model.vm import VmSpec
    from hostler.model.vm_api import VmView, Why

LOOK_EVERY = 1.0
HEADS = ("NAME", "PHASE", "READY", "NODE", "CPUS", "MEMORY", "ADDRESS", "AGE", "ID")


@click.command("list")
@click.option("--all", "everywhere", is_flag=True, help="The machines of every project that you can see.")
@click.option("-l", "--label", "label", multiple=True, metavar="NAME=VALUE", help="Only machines with this label.")
@click.option("--watch", "watching", is_flag=True, help="Keep running, and show each change.")
@click.option("--limit", type=click.IntRange(min=1), help="The largest number of machines to list.")
@show.output_option
@project_options
@server_options
def list_(
    *, everywhere: bool, label: tuple[str, ...], watching: bool, limit: int | None, output: str, org: str, project: str
) -> None:
    """List the machines of a project, or with --all of every project that you can see."""
    where = (None, None) if everywhere else (org, project)
    wanted = labels(label, "-l")
    server = chosen_server()
    if watching:
        complete(_watch(server, where, wanted, output))
    else:
        complete(_list(server, where, wanted, limit, output))


async def _list(
    server: Server, where: tuple[str | None, str | None], wanted: dict[str, str], limit: int | None, output: str
) -> None:
    async with open_client(server) as client:
        found = [view async for view in machines(client, where, wanted, limit)]
    row = partial(_row, everywhere=where[0] is None)
    show_all(found, output, _heads(where), row, "no machines; create one: hostler vm create NAME")


def machines(
    client: Client, where: tuple[str | None, str | None], wanted: dict[str, str], limit: int | None = None
) -> AsyncIterator[VmView]:
    """Yield the machines of a project, or of all projects."""
    return all_of(client, partial(client.vms.list, *where, labels=wanted), limit)


def _heads(where: tuple[str | None, str | None]) -> tuple[str, ...]:
    return HEADS if where[0] is not None else ("PROJECT", *HEADS)


def _row(view: VmView, *, everywhere: bool) -> list[str]:
    cells = [f"{view.org}/{view.project}"] if everywhere else []
    cells += [
        view.name,
        view.phase.value,
        _ready(view),
        view.node or "",
        str(view.spec.cpus),
        size(view.spec.memory_mib),
    ]
    cells += [view.address, span(max(0.0, time.time() - view.created_at)), view.id]
    return [show.safe(cell) for cell in cells]


def _ready(view: VmView) -> str:
    if view.phase is not VmPhase.RUNNING or view.readiness is None:
        return ""
    return "yes" if view.available else f"{view.readiness.step.value}{' (late)' if view.readiness.cause else ''}"


async def _watch(server: Server, where: tuple[str | None, str | None], wanted: dict[str, str], output: str) -> None:
    """Print each machine, then each change. Polls, so that nothing is missed while the store is unreachable."""
    seen: dict[str, bytes] = {}
    known: dict[str, VmView] = {}
    table = show.Columns(*_heads(where))
    async with open_client(server) as client:
        while True:
            try:
                found = {view.id: view async for view in machines(client, where, wanted)}
            except Unavailable as error:
                click.echo(f"{error}; retrying", err=True)
                await asyncio.sleep(LOOK_EVERY * 3)
                continue
            for view in found.values():
                text = msgspec.json.encode(view)
                if seen.get(view.id) != text:
                    _tell(view, "", output, table, everywhere=where[0] is None)
                seen[view.id] = text
            for gone in [known[vm] for vm in known if vm not in found]:
                seen.pop(gone.id, None)
                _tell(gone, "gone", output, table, everywhere=where[0] is None)
            known = found
            sys.stdout.flush()
            await asyncio.sleep(LOOK_EVERY)


def _tell(view: VmView, phase: str, output: str, table: show.Columns, *, everywhere: bool) -> None:
    plain = msgspec.to_builtins(view) | ({"phase": phase} if phase else {})
    if output != "table":
        click.echo(show.document(plain, output), nl=False)
    else:
        cells = _row(view, everywhere=everywhere)
        cells[2 if everywhere else 1] = phase or view.phase.value
        table.rows([cells])


@click.command("show")
@click.argument("vm")
@show.output_option
@project_options
@with_client
async def show_(client: Client, *, vm: str, output: str, org: str, project: str) -> None:
    """Show the machine VM: its spec and its status."""
    view = await read(client, lambda stale: client.vms.get(org, project, vm, stale=stale))
    if output != "table":
        show.emit(msgspec.to_builtins(view), output)
    else:
        show.pairs(rows(view))


def rows(view: VmView) -> list[tuple[str, str]]:
    """Return the fields of a machine as names and values."""
    spec = view.spec
    found = [
        ("NAME", view.name),
        ("ID", view.id),
        ("PROJECT", f"{view.org}/{view.project}"),
        ("PHASE", view.phase.value + (f": {view.detail}" if view.detail else "")),
        ("DESIRED", f"power {view.power.value}" + ("" if view.settled else " (not reached yet)")),
        ("NODE", view.node or "none"),
        ("READY", ready(view).removeprefix(", ")),
        ("ADDRESS", view.address),
        ("ACCESS", _access(view)),
        ("SIZE", _shape(spec) + _share(view)),
        ("IMAGE", spec.image),
        ("CLONE OF", "" if spec.origin is None else f"snapshot {spec.origin.snapshot} of {spec.origin.vm}"),
        ("MOVE", _move(view)),
        ("AT NEXT BOOT", ", ".join(view.at_next_boot)),
        ("LABELS", label_text(view.labels)),
        ("NODE LABELS", label_text(view.node_labels)),
        ("NEW DISK SINCE", moment(view.disk_since) if view.disk_since else ""),
        ("RETAINED", _retained_text(view)),
        ("WARNING", "\n".join(view.warnings)),
        ("ON NODE LOSS", view.on_node_loss.value),
        ("SNAPSHOTS", ", ".join(f"{name} ({_state(found)})" for name, found in view.snapshots.items())),
        ("CREATED", moment(view.created_at)),
        ("EXPIRES", moment(view.expires_at)),
        ("REVISION", str(view.revision)),
    ]
    return [(name, "\n".join(show.safe(line) for line in text.split("\n"))) for name, text in found if text]


def _shape(spec: VmSpec) -> str:
    return f"{counted(spec.cpus, 'cpu')}, {size(spec.memory_mib)} memory, {spec.disk_gib} GiB disk"


def _access(view: VmView) -> str:
    if view.access is None:
        return ""
    keys = "".join(f"\n{key}" for key in view.access.host_keys) or "\nhost key not known"
    return f"{view.access.user} at {view.access.host}:{view.access.port} of its node{keys}"


def _retained_text(view: VmView) -> str:
    """List the retained disks of the machine, with the command that shows each."""
    return "\n".join(
        f"disk on node {each.node} since {moment(each.retained_at)}: hostler vm retained show {each.node}/{each.name}"
        for each in view.retained
    )


def _share(view: VmView) -> str:
    return "" if view.spec.cpu_share == 100 else f", cpu share {view.spec.cpu_share}"


def _move(view: VmView) -> str:
    if view.move is None:
        return ""
    return f"to {view.move.to}, {'finished' if view.moved >= view.move.number else 'in progress'}"


def _state(snapshot: Any) -> str:
    if snapshot is None:
        return "not taken yet"
    return f"{snapshot.state.value}: {snapshot.detail}" if snapshot.detail else str(snapshot.state.value)


@click.command()
@click.argument("vm")
@click.option("--nodes", "limit", type=click.IntRange(min=0), default=20, show_default=True, help="Nodes to show.")
@show.output_option
@project_options
@with_client
async def why(client: Client, *, vm: str, limit: int, output: str, org: str, project: str) -> None:
    """Explain why VM is on its node, or on none: the decision, and the current score of each node."""
    found = await client.vms.why(org, project, vm)
    if output != "table":
        show.emit(msgspec.to_builtins(found), output)
        return
    _explain(vm, found, limit)


def _explain(vm: str, found: Why, limit: int) -> None:
    place = f"on {found.node}" if found.node else "on no node"
    click.echo(click.style(f"{show.safe(vm)}: {found.phase.value}, {place}", bold=True))
    for reason in found.decided:
        click.echo(f"  {show.safe(f'{reason.subject}: {reason.why}' if reason.subject else reason.why)}")
    if found.nodes and limit:
        click.echo()
        show.Columns("NODE", "FITS", "SCORE", "WHY").rows(
            [
                [show.safe(n.node), "yes" if n.fits else "no", f"{n.score:.2f}", show.safe("; ".join(n.reasons))]
                for n in found.nodes[:limit]
            ]
        )
    if len(found.nodes) > limit:
        click.echo(f"… and {counted(len(found.nodes) - limit, 'more node')}: --nodes {len(found.nodes)}", err=True)
