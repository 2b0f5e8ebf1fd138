"""`hostler sim fault`, `lift`, `switch` and `repair`: commands for a running simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from hostler.entry.cli import show
from hostler.entry.cli.server_options import chosen_server, reached, server_options, with_client
from hostler.entry.cli.store_option import complete
from hostler.entry.cli.value import Duration
from hostler.errors import Conflict
from hostler.model.sim_api import FaultInject, HardwareCommand, HardwareVerb

if TYPE_CHECKING:
    from hostler.client import Client
    from hostler.entry.cli.server_options import Server
    from hostler.model.sim_api import ProposalPage

NUMBERS = tuple(
    name for name in FaultInject.__struct_fields__ if name not in ("unknown", "fault", "on", "for_", "names")
)

TEXTS = ("artifact", "step")


def _known() -> dict[str, Any]:
    from hostler.sim.fault import FAULTS

    return dict(FAULTS)


@click.command()
@click.argument("fault", required=False)
@click.argument("on", required=False, default="")
@click.option("--for", "for_", type=Duration(), help="Duration of the fault. Default: until it is lifted.")
@click.option("--set", "numbers", metavar="NAME=VALUE", multiple=True, help="A parameter: --set chance=0.5.")
@click.option("--with", "names", metavar="COMPONENT", multiple=True, help="Also cut off by a partition; repeatable.")
@server_options
def fault(fault: str | None, on: str, for_: float | None, numbers: tuple[str, ...], names: tuple[str, ...]) -> None:
    """Inject FAULT into the component ON: power r1/pdu1, network r1/b3, leader_paused, …

    Without FAULT, list all kinds of faults.
    """
    if fault is None:
        for name, kind in _known().items():
            where = f"on a {' or '.join(place for place in kind.place if place != 'all')}" if kind.place else ""
            click.echo(f"{click.style(name, bold=True):<28} {' '.join((kind.__doc__ or '').split())} {where}")
        return
    fields = {"fault": fault, "on": on} | ({} if for_ is None else {"for": for_}) | _numbers(numbers)
    if names:
        fields["names"] = list(names)
    complete(_inject(chosen_server(), FaultInject.decode(msgspec.json.encode(fields), strict=True)))


def _numbers(pairs: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or name not in NUMBERS:
            raise click.BadParameter(f"{pair!r}: write --set NAME=VALUE; names are {', '.join(NUMBERS)}")
        try:
            found[name] = text if name in TEXTS else msgspec.json.decode(text.encode())
        except msgspec.DecodeError:
            raise click.BadParameter(f"{pair!r}: {text!r} is not a number, true or false") from None
    return found


async def _inject(server: Server, wanted: FaultInject) -> None:
    async with reached(server) as client:
        found = await client.sim.inject(wanted)
    click.echo(f"{found.id}: {show.safe(found.text)}")


@click.command()
@click.argument("ids", metavar="ID…", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Lift all active faults.")
@server_options
def lift(ids: tuple[str, ...], everything: bool) -> None:
    """Lift faults by their ids (see `hostler sim status`)."""
    if bool(ids) == everything:
        raise click.UsageError("give ids, or --all")
    complete(_lift(chosen_server(), ids))


async def _lift(server: Server, ids: tuple[str, ...]) -> None:
    async with reached(server) as client:
        for id_ in ids or [fault.id for fault in (await client.sim.get()).faults]:
            found = await client.sim.lift(id_)
            click.echo(f"{found.id}: lifted ({show.safe(found.text)})")


@click.command()
@click.argument("command", type=click.Choice([verb.value.replace("_", "-") for verb in HardwareVerb]))
@click.argument("on")
@click.option("--guard", type=float, help="Instant of the state you decided from, in seconds. Default: now.")
@with_client
async def switch(client: Client, *, command: str, on: str, guard: float | None) -> None:
    """Switch the component ON on or off: power-off r1/b3, power-on r1/pdu1:3, disconnect r1/tor1:3, stop r1/b3.

    With --guard the command is refused if the component has changed since that instant.
    """
    verb = HardwareVerb(command.replace("-", "_"))
    decided_at = (await client.sim.get()).now if guard is None else guard
    done = await client.sim.command(HardwareCommand(command=verb, on=on, guard=decided_at))
    for line in done.changes:
        click.echo(show.safe(line))
    if not done.changes:
        click.echo(f"{show.safe(done.on)}: nothing to do, already in that state")
    elif not done.followed:
        raise Conflict(f"{done.on}: the command had no effect; see the lines above, and: hostler sim repair")


@click.command()
@click.argument("ids", metavar="[ID]…", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All proposed repairs, also those that ask for a human.")
@click.option(
    "--auto/--by-hand", "automatic", default=None, help="Perform repairs automatically where commands suffice, or not."
)
@show.output_option
@server_options
def repair(ids: tuple[str, ...], everything: bool, automatic: bool | None, output: str) -> None:
    """Perform the repairs ID…; without an ID, show the proposed repairs and their reasons."""
    if ids and everything:
        raise click.UsageError("give ids or --all, not both")
    complete(_repair(chosen_server(), ids, everything, automatic, output))


async def _repair(server: Server, ids: tuple[str, ...], everything: bool, automatic: bool | None, output: str) -> None:
    async with reached(server) as client:
        page = await client.sim.proposals() if automatic is None else await client.sim.auto_repair(automatic)
        chosen = [each.id for each in page.items] if everything else ids
        for id_ in chosen:
            done = await client.sim.repair(id_)
            click.echo(f"done: {show.safe(done.text.removeprefix('ask a human: '))}")
    if not chosen:
        _show(page, output)


def _show(page: ProposalPage, output: str) -> None:
    if output != "table":
        show.emit(msgspec.to_builtins(page), output)
        return
    how = "automatic repair is on, where commands suffice" if page.automatic else "automatic repair is off"
    click.echo(f"{how}; {len(page.items) or 'nothing'} proposed", err=True)
    if page.items:
        rows = [[each.id, each.text, each.reason] for each in page.items]
        show.Columns("ID", "WHAT TO DO", "BECAUSE").rows([[show.safe(cell) for cell in row] for row in rows])
