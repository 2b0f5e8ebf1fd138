"""`hostler events`."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from hostler.entry.cli import block, show
from hostler.entry.cli.reach import chosen_server, reached, server_options
from hostler.entry.cli.target import complete

if TYPE_CHECKING:
    from hostler.entry.cli.reach import Server
    from hostler.model.api import EventView

KINDS = ("vm", "handle", "lab", "node", "alive", "leader")


@click.command()
@click.option("--since", metavar="ID", help="From after this event on: its id, in brackets.")
@click.option("--kind", type=click.Choice(KINDS), multiple=True, help="Only of this kind. May be given several times.")
@click.option("--count", type=click.IntRange(min=1), help="End after so many.")
@show.output_option
@server_options
def events(since: str | None, kind: tuple[str, ...], count: int | None, output: str) -> None:
    """Show what happens to machines and nodes, as it happens; Ctrl-C ends it.

    A connection that breaks is taken up again where it broke: each event is shown once. With --since, what happened in
    between is shown first.
    """
    complete(_events(chosen_server(), since, kind, count, output))


async def _events(server: Server, since: str | None, kinds: tuple[str, ...], count: int | None, output: str) -> None:
    shown = 0
    async with reached(server) as client, client.events(after=since, kinds=kinds) as stream:
        async for view in stream:
            # Events of one transaction share the revision: only the whole id says after which of them.
            click.echo(_text(stream.last_id or str(view.revision), view, output), nl=False)
            sys.stdout.flush()
            shown += 1
            if count is not None and shown >= count:
                return


def _text(number: str, view: EventView, output: str) -> str:
    plain: dict[str, Any] = {"id": number} | msgspec.to_builtins(view)
    if output == "json":
        return show.as_json(plain) + "\n"
    if output == "yaml":
        return "---\n" + block.dump(plain)
    if view.type == "reset":
        return f"{datetime.now().astimezone():%H:%M:%S}  what lies between is lost: list again  [{number}]\n"
    what = "deleted" if view.type == "delete" else _said(view)
    return f"{datetime.now().astimezone():%H:%M:%S}  {view.of:<6}  {show.safe(view.subject)}  {what}  [{number}]\n"


def _said(view: EventView) -> str:
    record = view.record or {}
    words: list[str] = []
    for name in ("state", "lifecycle", "power", "node", "address", "fence", "detail"):
        value = record.get(name)
        if value not in (None, "", 0):
            words.append(f"{name}={value}")
    return show.safe(" ".join(words) or "written")
