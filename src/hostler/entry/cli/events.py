"""`hostler events`."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from hostler.entry.cli import block, show
from hostler.entry.cli.reach import chosen_server, reached, server_options
from hostler.entry.cli.target import complete

if TYPE_CHECKING:
    from hostler.entry.cli.reach import Server

KINDS = ("vm", "handle", "node", "alive", "leader")


@click.command()
@click.option("--since", metavar="ID", help="From after this event on: revision.index, as the last column shows it.")
@click.option("--kind", type=click.Choice(KINDS), multiple=True, help="Only of this kind. May be given several times.")
@click.option("--count", type=click.IntRange(min=1), help="End after so many.")
@show.output_option
@server_options
def events(since: str | None, kind: tuple[str, ...], count: int | None, output: str) -> None:
    """Show what happens to machines and nodes, as it happens; Ctrl-C ends it.

    A connection that breaks is taken up again where it broke: each event is shown once. With --since, what happened in
    between is shown first.
    """
    complete(_events(chosen_server(), since, frozenset(kind), count, output))


async def _events(server: Server, since: str | None, kinds: frozenset[str], count: int | None, output: str) -> None:
    shown = 0
    async with reached(server) as client:
        async for event in client.events(after=since):
            view = event.view if hasattr(event, "view") else event
            if kinds and view.of not in kinds:
                continue
            click.echo(_text(getattr(event, "id", str(view.revision)), view, output), nl=False)
            shown += 1
            if count is not None and shown >= count:
                return


def _text(number: str, view: Any, output: str) -> str:
    plain: dict[str, Any] = {"id": number} | msgspec.to_builtins(view)
    if output == "json":
        return show.as_json(plain) + "\n"
    if output == "yaml":
        return "---\n" + block.dump(plain)
    what = "deleted" if view.type == "delete" else _said(view)
    return f"{datetime.now().astimezone():%H:%M:%S}  {view.of:<6}  {show.safe(view.subject)}  {what}  [{number}]\n"


def _said(view: Any) -> str:
    record = view.record or {}
    words: list[str] = []
    for name in ("state", "lifecycle", "power", "node", "address", "fence", "detail"):
        value = record.get(name)
        if value not in (None, "", 0):
            words.append(f"{name}={value}")
    return show.safe(" ".join(words) or "written")
