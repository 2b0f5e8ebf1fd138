"""`hostler inventory`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from hostler.entry.cli import show
from hostler.entry.cli.app import LazyGroup
from hostler.entry.cli.options import chosen_server, complete, open_client, read, server_options, with_client
from hostler.entry.cli.progress import ask, yes_option
from hostler.entry.cli.rack import racks, runs, standing
from hostler.errors import Conflict, Invalid
from hostler.kit.plural import counted
from hostler.model.inventory import Condition
from hostler.model.inventory_api import CLOUDCHAMBER, HOSTLER, HardwareSet
from hostler.model.name import fold

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hostler.client import Client
    from hostler.engine.inventory.inventory_file import Inventory
    from hostler.entry.cli.options import Server
    from hostler.model.inventory_api import HardwareView, InventoryChange, InventoryDocument, InventoryPlan, RackView

_HERE = __name__

COMMANDS = {
    "load": (_HERE, "load", "Load an inventory file, after showing its plan."),
    "check": (_HERE, "check", "Check an inventory file without a server."),
    "show": (_HERE, "show_", "Show the inventory; -o yaml writes a file to load."),
    "set": (_HERE, "set_", "Take a rack, blade, pdu, tor, zone or region out of use, or back."),
}
_SIGNS = {"add": ("+", "green"), "change": ("~", "yellow"), "remove": ("-", "red")}
_PARTS = ("pdu", "tor", "blade")


@click.group(cls=LazyGroup, commands_at=COMMANDS)
def inventory() -> None:
    """Load, show and change the datacenter inventory: regions, zones, racks and their parts."""


# Loading

format_option = click.option(
    "--format",
    "format_",
    type=click.Choice([HOSTLER, CLOUDCHAMBER]),
    default=HOSTLER,
    show_default=True,
    help="The format of FILE: docs/inventory.md, or a CloudChamber inventory file.",
)


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@format_option
@click.option("--plan", "plan_only", is_flag=True, help="Show what would change, and change nothing.")
@yes_option
@show.output_option
@server_options
def load(file: str, format_: str, plan_only: bool, yes: bool, output: str) -> None:
    """Replace the inventory with FILE. Shows the changes first and asks for confirmation.

    Objects that are not in FILE are removed, except blades whose node has machines. Where FILE does not give `enabled`
    or `condition`, the current values stay. Loading the same file again changes nothing.
    """
    from hostler.engine.inventory.export import api_document

    document = api_document(_read_file(file, format_))
    complete(_load(chosen_server(), file, document, plan_only=plan_only, yes=yes, output=output))


async def _load(
    server: Server, file: str, document: InventoryDocument, *, plan_only: bool, yes: bool, output: str
) -> None:
    async with open_client(server) as client:
        plan = await client.inventory.plan(document)
        if plan_only and output != "table":
            show.emit(msgspec.to_builtins(plan), output)
            return
        _tell(plan, to_stderr=output != "table")
        if plan.refused:
            for line in plan.refused:
                click.echo(show.safe(f"! {line}"), err=True)
            raise Conflict(f"{file}: cannot be loaded, nothing was changed; correct the lines above")
        if not plan.changes:
            click.echo(f"{show.safe(file)}: nothing to do, the inventory matches", err=output != "table")
        if plan_only:
            return
        if plan.changes:
            ask("Load it?", yes=yes, otherwise="--plan to look only")
        loaded = await client.inventory.load(msgspec.structs.replace(document, agreed=plan.digest))
    if output != "table":
        show.emit(msgspec.to_builtins(loaded), output)
    elif plan.changes:
        click.echo(f"loaded: {_count_text(plan.changes, done=True)}")


def _read_file(file: str, format_: str) -> Inventory:
    """Return the inventory in a file. Print each mistake on its own line, then raise Invalid."""
    from hostler.engine.inventory.inventory_file import inventory_of_text
    from hostler.kit.yaml import LARGEST, Doubts

    name = "stdin" if file == "-" else file
    try:
        with click.open_file(file, "rb") as opened:
            data = opened.read(LARGEST + 1)
    except OSError as error:
        raise Invalid(f"{file}: cannot be read: {error.strerror}; name another file") from None
    doubts = Doubts(name)
    found, notes = inventory_of_text(data, doubts, format_)
    if found is None or doubts:
        lines = doubts.lines()
        for line in lines:
            click.echo(show.safe(line), err=True)
        raise Invalid(f"{name}: {counted(len(doubts), 'mistake')}; correct it, see docs/inventory.md")
    for note in notes:
        click.echo(show.safe(f"  note: {note}"), err=True)
    return found


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@format_option
def check(file: str, format_: str) -> None:
    """Check the inventory in FILE without a server."""
    found = _read_file(file, format_)
    blades = sum(len(full.blades) for full in found.racks)
    levels = (("region", len(found.regions)), ("zone", len(found.zones)), ("rack", len(found.racks)), ("blade", blades))
    click.echo(f"{show.safe(file)}: {', '.join(counted(number, what) for what, number in levels)}")


def _tell(plan: InventoryPlan, *, to_stderr: bool) -> None:
    for sign, line in _lines(plan.changes):
        mark, colour = _SIGNS[sign]
        click.secho(show.safe(f"{mark} {line}"), fg=colour, err=to_stderr)
    for note in plan.notes:
        click.echo(show.safe(f"  note: {note}"), err=True)
    if plan.changes:
        click.echo(_count_text(plan.changes), err=to_stderr)


def _lines(changes: Sequence[InventoryChange]) -> Iterator[tuple[str, str]]:
    """Yield a line for each change. Parts of an added or removed rack share its line, and so do similar changes."""
    whole = {(each.what, fold(each.name)) for each in changes if each.level == "rack" and each.what != "change"}
    with_it: dict[tuple[str, str], dict[str, int]] = {}
    alone: list[InventoryChange] = []
    for each in changes:
        of = (each.what, fold(each.name.rpartition("/")[0]))
        if each.level not in _PARTS or of not in whole:
            alone.append(each)
        else:
            counts = with_it.setdefault(of, {})
            counts[each.level] = counts.get(each.level, 0) + 1
    for group in _alike(alone):
        first = group[0]
        name = first.name
        if len(group) > 1:
            rack = first.name.rpartition("/")[0]
            ordered = reversed(group) if first.what == "remove" else group
            names = ", ".join(runs([each.name.rpartition("/")[2] for each in ordered]))
            yield first.what, f"{len(group)} {first.level}s of {rack} ({names}){_change_text(first)}"
            continue
        parts = with_it.get((first.what, fold(name)), {}) if first.level == "rack" else {}
        inside = ", ".join(counted(parts[level], level) for level in _PARTS if level in parts)
        yield first.what, f"{first.level} {name}{f': {inside}' if inside else _change_text(first)}"


def _alike(changes: Sequence[InventoryChange]) -> Iterator[list[InventoryChange]]:
    """Group neighbours that differ only by their name."""
    group: list[InventoryChange] = []
    for each in changes:
        if group and (each.level not in _PARTS or _without_name(each) != _without_name(group[-1])):
            yield group
            group = []
        group.append(each)
    if group:
        yield group


def _without_name(change: InventoryChange) -> tuple[Any, ...]:
    return change.what, change.level, change.name.rpartition("/")[0], change.fields


def _change_text(change: InventoryChange) -> str:
    told = [
        f"{each.field}{':' * each.field.startswith('port ')} {each.old or 'none'} → {each.new or 'none'}"
        for each in change.fields
    ]
    return f": {', '.join(told)}" if told else ""


def _count_text(changes: Sequence[InventoryChange], *, done: bool = False) -> str:
    words = {"add": "added", "change": "changed", "remove": "removed"} if done else dict.fromkeys(_SIGNS, "")
    numbers = [(sum(each.what == what for each in changes), what) for what in _SIGNS]
    return ", ".join(f"{number} {words[what] or f'to {what}'}" for number, what in numbers if number)


# Showing


@click.command("show")
@show.output_option
@with_client
async def show_(client: Client, *, output: str) -> None:
    """Show the inventory. As YAML or JSON it is a file that `hostler inventory load` reads."""
    if output != "table":
        shown = await read(client, lambda stale: client.inventory.get(stale=stale))
        document = {"regions": list(shown.regions), "racks": list(shown.racks)}
        show.emit({name: levels for name, levels in document.items() if levels} or {"racks": []}, output)
        return
    found = await racks(client)
    regions = await read(client, lambda stale: client.inventory.regions(stale=stale))
    if not found and not regions.items:
        click.echo("the inventory is empty; load one: hostler inventory load FILE", err=True)
        return
    left = {fold(each.name): each for each in found}
    for region in regions.items:
        click.echo(_level(f"region {region.name}", region))
        for zone in region.zones:
            click.echo("  " + _level(f"zone {zone.name}", zone))
            here = (fold(region.name), fold(zone.name))
            for name, each in tuple(left.items()):
                if (fold(each.region), fold(each.zone)) == here:
                    click.echo("    " + _rack(left.pop(name)))
    if left:
        click.echo(click.style("no region", bold=True))
        for each in left.values():
            click.echo("  " + _rack(each))


def _level(name: str, view: Any) -> str:
    state = standing(view.enabled, view.condition)
    return click.style(show.safe(name), bold=True) + ("" if state == "operational" else f" ({state})")


def _rack(view: RackView) -> str:
    state = standing(view.enabled, view.condition)
    parts = ", ".join((counted(view.pdus, "pdu"), counted(view.tors, "tor"), counted(view.blades, "blade")))
    where = f", {view.location}" if view.location else ""
    return show.safe(f"rack {view.name}: {parts}{where}" + ("" if state == "operational" else f" ({state})"))


# Changing


@click.command("set")
@click.argument("what", metavar="RACK[/BLADE|/PDU|/TOR]", required=False)
@click.option("--region", metavar="NAME", help="A region instead of a rack.")
@click.option("--zone", metavar="REGION/NAME", help="A zone instead of a rack.")
@click.option("--enable/--disable", "enabled", default=None, help="Whether it may be used.")
@click.option("--condition", type=click.Choice([each.value for each in Condition]), help="Its lifecycle condition.")
@server_options
def set_(what: str | None, region: str | None, zone: str | None, enabled: bool | None, condition: str | None) -> None:
    """Take a rack, blade, pdu or tor out of use, or back: r1, r1/b3, r1/pdu1.

    Nodes below it accept new machines only while it is enabled and operational; running machines stay. To empty a node:
    `hostler node drain`.
    """
    if sum(each is not None for each in (what, region, zone)) != 1:
        raise click.UsageError("name one thing: RACK, RACK/BLADE, --region NAME or --zone REGION/NAME")
    if enabled is None and condition is None:
        raise click.UsageError("say what to change: --enable, --disable or --condition CONDITION")
    change = HardwareSet(
        enabled=msgspec.UNSET if enabled is None else enabled,
        condition=msgspec.UNSET if condition is None else Condition(condition),
    )
    complete(_set(chosen_server(), what, region, zone, change))


async def _set(server: Server, what: str | None, region: str | None, zone: str | None, change: HardwareSet) -> None:
    async with open_client(server) as client:
        if region is not None:
            done = await client.inventory.set_region(region, change)
        elif zone is not None:
            of, slash, name = zone.partition("/")
            if not of or not slash or not name:
                raise click.UsageError("--zone: write REGION/NAME")
            done = await client.inventory.set_zone(of, name, change)
        else:
            done = await _set_in_rack(client, what or "", change)
    click.echo(f"{done.level} {show.safe(done.name)}: {standing(done.enabled, done.condition)}")


async def _set_in_rack(client: Client, what: str, change: HardwareSet) -> HardwareView:
    rack, slash, part = what.partition("/")
    if not slash:
        return await client.racks.set(rack, change)
    # A rack holds each name once; most are blades.
    for feeds, setting in ((client.racks.pdus, client.racks.set_pdu), (client.racks.tors, client.racks.set_tor)):
        if any(fold(feed.name) == fold(part) for feed in (await feeds(rack)).items):
            return await setting(rack, part, change)
    return await client.racks.set_blade(rack, part, change)
