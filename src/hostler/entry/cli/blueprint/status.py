"""`hostler blueprint status`: the progress of a blueprint, once or until it is gone."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click
import msgspec

from hostler.entry.cli import show
from hostler.entry.cli.blueprint.render import described, ready, states, step, version
from hostler.entry.cli.failure import note
from hostler.entry.cli.server_options import chosen_server, reached, read, server_options
from hostler.entry.cli.store_option import complete
from hostler.errors import NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hostler.entry.cli.server_options import Server
    from hostler.model.blueprint_api import BlueprintStatus, SliceStatus, VersionStatus

LOOK_EVERY = 1.0
NAMED = 6
"""Nodes that a line names at most."""
HEADS = ("SLICE", "VERSION", "PHASE", "READY", "CALLS", "INSTANCES", "NODES")


@click.command()
@click.argument("name")
@click.option("--watch", "watching", is_flag=True, help="Keep running, and show each change, until it is gone.")
@show.output_option
@server_options
def status(name: str, watching: bool, output: str) -> None:
    """Show the progress of the blueprint NAME: its slices, their versions and nodes, and what they wait for."""
    server = chosen_server()
    complete(_watch(server, name, output) if watching else _status(server, name, output))


async def _status(server: Server, name: str, output: str) -> None:
    async with reached(server) as client:
        found = await read(client, lambda stale: client.blueprints.status(name, stale=stale))
    if output != "table":
        show.emit(msgspec.to_builtins(found), output)
        return
    show.pairs([(head, show.safe(text)) for head, text in _rows(found)])
    click.echo()
    show.Columns(*HEADS).rows([[show.safe(cell) for cell in row] for one in found.slices for row in slice_rows(one)])
    for line in _details(found):
        click.echo(show.safe(line))
    failing = [one.base for one in found.slices if any(each.failures for each in one.versions)]
    if failing:
        note(f"see the output: hostler slice logs {show.safe(failing[0])}")


def _rows(found: BlueprintStatus) -> Iterator[tuple[str, str]]:
    yield "NAME", found.name
    if found.number:
        yield "NUMBER", str(found.number)
    yield "PHASE", f"{found.phase.value}{f': {found.detail}' if found.detail else ''}"
    yield "READY", ready(found.slices)


def slice_rows(one: SliceStatus) -> Iterator[list[str]]:
    """Yield a row for each version."""
    for at, each in enumerate(one.versions):
        first = at == 0
        desired = one.wished if each.artifact == one.artifact else 0
        yield [
            one.base if first else "",
            version(each.artifact),
            step(one) if first else "",
            f"{each.ready}/{desired}" if each.artifact == one.artifact else str(each.ready),
            "" if each.weight is None else f"{each.weight} %",
            states(each.states) or "none",
            _nodes(each),
        ]


def _nodes(each: VersionStatus) -> str:
    named = [f"{on.node}{f' × {on.instances}' if on.instances > 1 else ''}" for on in each.nodes[:NAMED]]
    more = len(each.nodes) - len(named) + each.more_nodes
    return f"{', '.join(named)}{f' and {more} more' if more else ''}"


def _details(found: BlueprintStatus) -> Iterator[str]:
    """Yield the details that do not fit into the table."""
    for one in found.slices:
        if one.detail:
            yield f"{one.base}: {one.detail}"
        for each in one.versions:
            if each.failures and each.why not in one.detail:
                given_up = ", given up" if each.given_up else ""
                yield f"{one.base} {version(each.artifact)}: failed {each.failures} in a row{given_up}: {each.why}"
        for alert in one.alerts:
            if alert.firing:
                yield alert.why
        for reason in one.reasons[:10]:
            yield f"{one.base}: not on {reason.subject}: {reason.why}"


async def _watch(server: Server, name: str, output: str) -> None:
    """Print the status, then each change. Polls, so that an outage misses nothing."""
    watched, found = _Watched(name, output), False
    async with reached(server) as client:
        while True:
            try:
                now = await client.blueprints.status(name)
            except NotFound:
                if not found:
                    raise
                watched.show(f"{name}: gone", {"name": name, "phase": "gone"})
                return
            except Unavailable as error:
                note(f"{error}; retrying")
                await asyncio.sleep(LOOK_EVERY * 3)
                continue
            found = True
            watched.tell(now)
            await asyncio.sleep(LOOK_EVERY)


class _Watched:
    """What was already shown of one blueprint."""

    def __init__(self, name: str, output: str) -> None:
        self._name, self._output = name, output
        self._said, self._slices = "", dict[str, list[str]]()

    def tell(self, now: BlueprintStatus) -> None:
        if (said := described(now)) != self._said:
            self._said = said
            self.show(f"{self._name}: {said}", msgspec.to_builtins(now))
        lines = {one.base: _lines(one) for one in now.slices}
        for one in now.slices:
            if self._slices.get(one.base) != lines[one.base]:
                for line in lines[one.base]:
                    self.show(line, msgspec.to_builtins(one))
                    if self._output != "table":  # one document contains all lines
                        break
        for base in self._slices.keys() - lines.keys():
            self.show(f"{base}: gone", {"base": base, "phase": "gone"})
        self._slices = lines

    def show(self, line: str, plain: Any) -> None:
        show.tell(line, plain, self._output)


def _lines(one: SliceStatus) -> list[str]:
    found = []
    for each in one.versions:
        weight = "" if each.weight is None else f", {each.weight} % of the calls"
        said = f"{one.base} {version(each.artifact)}: {step(one)}, {each.ready} ready{weight}"
        found.append(f"{said}: {states(each.states) or 'none'}")
    if one.detail:
        found.append(f"{one.base}: {one.detail}")
    found += [alert.why for alert in one.alerts if alert.why]
    return found
