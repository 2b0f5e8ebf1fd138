"""`hostler rack`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from hostler.entry.cli import show
from hostler.entry.cli.app import LazyGroup
from hostler.entry.cli.options import all_of, read, show_all, with_client
from hostler.entry.cli.show import capacity, moment, size
from hostler.kit.plural import counted
from hostler.model.inventory import Condition
from hostler.model.name import fold

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.client import Client
    from hostler.model.inventory import HardwareFlow
    from hostler.model.inventory_api import BladeView, FeedView, RackDetail, RackView

_HERE = __name__

COMMANDS = {
    "list": (_HERE, "list_", "List the racks and their usage."),
    "show": (_HERE, "show_", "Show one rack: its blades, their power and network, and their machines."),
}
HEADS = ("RACK", "REGION", "ZONE", "STATE", "BLADES", "ON DUTY", "VMS", "CPUS", "MEMORY", "LOCATION")
SHOWN = 3
"""Machines of a blade that the table names."""


@click.group(cls=LazyGroup, commands_at=COMMANDS)
def rack() -> None:
    """Show racks and the state of their blades. Use `hostler inventory` to change them."""


@click.command("list")
@show.output_option
@with_client
async def list_(client: Client, *, output: str) -> None:
    """List the racks and their usage."""
    found = await racks(client)
    show_all(found, output, HEADS, _row, "no racks; load an inventory: hostler inventory load FILE")


async def racks(client: Client) -> list[RackView]:
    return [view async for view in all_of(client, client.racks.list)]


def standing(enabled: bool, condition: Condition) -> str:
    """Describe whether an object may be used, judged by its own state and not by that of its parents."""
    words = [] if enabled else ["disabled"]
    if condition is not Condition.OPERATIONAL or not words:
        words.append(condition.words)
    return ", ".join(words)


def _row(view: RackView) -> list[str]:
    cpus, memory, _ = capacity(view.used, view.capacity)
    cells = [
        *(view.name, view.region, view.zone, standing(view.enabled, view.condition)),
        *(str(view.blades), str(view.on_duty), str(view.vms), cpus, memory, view.location),
    ]
    return [show.safe(cell) for cell in cells]


@click.command("show")
@click.argument("rack")
@show.output_option
@with_client
async def show_(client: Client, *, rack: str, output: str) -> None:
    """Show the rack RACK: its blades, their power and network, and their machines."""
    view = await read(client, lambda stale: client.racks.get(rack, stale=stale))
    if output != "table":
        show.emit(msgspec.to_builtins(view), output)
        return
    _head(view)
    click.echo()
    feeds = [(kind, feed) for kind, feeds in (("pdu", view.pdus), ("tor", view.tors)) for feed in feeds]
    show.Columns("FEED", "KIND", "STATE", "PORTS", "WIRED TO").rows([_feed_row(kind, feed) for kind, feed in feeds])
    click.echo()
    ports = _ports(view)
    show.Columns("BLADE", "NODE", "STATE", "POWER", "NETWORK", "CPUS", "MEMORY", "VMS", "NOTE").rows(
        [_blade_row(blade, ports, view.rack.objection) for blade in view.blades]
    )


def _head(view: RackDetail) -> None:
    top = view.rack
    cpus, memory, disk = capacity(top.used, top.capacity)
    taking = (
        "all take machines" if top.on_duty == top.blades else counted(top.on_duty, "takes machines", "take machines")
    )
    rows = [
        ("RACK", top.name),
        ("REGION", f"{top.region}/{top.zone}" if top.zone else top.region),
        ("LOCATION", top.location),
        ("STATE", standing(top.enabled, top.condition)),
        ("NOT ACCEPTING", top.objection),
        ("FLOW", "" if top.flow is None else flow_words(top.flow)),
        ("BLADES", f"{top.blades}, {taking}"),
        ("VMS", str(top.vms)),
        ("CPUS", cpus),
        ("MEMORY", memory),
        ("DISK", disk),
        ("UNLISTED", ", ".join(f"{node} (registered, but not in the inventory)" for node in view.unlisted)),
        ("REVISION", str(view.revision)),
    ]
    show.pairs([(name, show.safe(text)) for name, text in rows if text])


def _feed_row(kind: str, feed: FeedView) -> list[str]:
    wired = [port.item for _, port in sorted(feed.ports.items()) if port.wired and port.item]
    cells = [
        *(feed.name, kind, standing(feed.enabled, feed.condition)),
        *(f"{len(wired)}/{len(feed.ports)}", ", ".join(runs(wired))),
    ]
    return [show.safe(cell) for cell in cells]


def runs(names: Sequence[str]) -> list[str]:
    """Collapse consecutive names into ranges such as `b1–b4`."""
    found: list[tuple[str, str, str, int]] = []  # first, last, the text before the number, the last number
    for name in names:
        prefix = name.rstrip("0123456789")
        number = int(name[len(prefix) :] or -1)
        if found and found[-1][2] == prefix and number >= 0 and found[-1][3] + 1 == number:
            found[-1] = (found[-1][0], name, prefix, number)
        else:
            found.append((name, name, prefix, number))
    return [first if first == last else f"{first}–{last}" for first, last, _, _ in found]


def _ports(view: RackDetail) -> dict[str, tuple[list[str], list[str]]]:
    """Return the ports that each item is wired to: those of pdus, and those of tors."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    for which, feeds in enumerate((view.pdus, view.tors)):
        for feed in feeds:
            for number, port in sorted(feed.ports.items()):
                if port.wired and port.item:
                    found.setdefault(fold(port.item), ([], []))[which].append(f"{feed.name}:{number}")
    return found


def flow_words(flow: HardwareFlow) -> str:
    """Describe the progress of a burn-in or retirement: the step, since when, and why."""
    until = "" if flow.until is None else f", until {moment(flow.until)}"
    return f"{flow.condition.words}: {flow.step.words} since {moment(flow.step_at)}{until}: {flow.reason}"


def node_state(blade: BladeView) -> str:
    """Describe the lifecycle state of the blade's node and whether it is reachable, in a few words."""
    if blade.lifecycle is None:
        return "not joined"
    word = blade.lifecycle.words
    return word if blade.alive else f"unreachable ({word})"


def _blade_row(blade: BladeView, ports: dict[str, tuple[list[str], list[str]]], above: str) -> list[str]:
    power, network = ports.get(fold(blade.name), ([], []))
    notes = [blade.objection] if blade.objection and blade.objection != above else []
    notes += [flow_words(blade.flow)] if blade.flow is not None else []
    if blade.machines:
        more = blade.vms - len(blade.machines[:SHOWN])
        notes.append(", ".join(blade.machines[:SHOWN]) + (f" and {more} more" if more > 0 else ""))
    has = blade.capacity
    cells = [
        *(blade.name, node_state(blade), standing(blade.enabled, blade.condition)),
        *(", ".join(power) or "none", ", ".join(network) or "none"),
        f"{blade.used.cpus}/{has.cpus}" if has.cpus else str(blade.used.cpus),
        f"{size(blade.used.memory_mib)}/{size(has.memory_mib)}" if has.memory_mib else size(blade.used.memory_mib),
        *(str(blade.vms), "; ".join(notes)),
    ]
    return [show.safe(cell) for cell in cells]
