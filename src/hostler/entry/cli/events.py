"""`hostler events`."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from hostler.entry.cli import show, tree
from hostler.entry.cli.server_options import chosen_server, reached, server_options
from hostler.entry.cli.store_option import complete
from hostler.kit.plural import counted
from hostler.model.trace_api import TracePage

if TYPE_CHECKING:
    from hostler.client import Client
    from hostler.entry.cli.server_options import Server
    from hostler.model.api import EventView
    from hostler.model.trace_api import TraceView

KINDS = (
    *("vm", "handle", "lab", "node", "alive", "leader", "blueprint", "deployment", "slice", "endpoint"),
    *("workload", "region", "zone", "rack", "blade", "pdu", "tor"),
)


@click.command()
@click.option("--since", metavar="ID", help="From after this event on: its id, in brackets.")
@click.option("--kind", type=click.Choice(KINDS), multiple=True, help="Only of this kind. May be given several times.")
@click.option("--count", type=click.IntRange(min=1), help="End after so many.")
@click.option("--tree", "as_tree", is_flag=True, help="Show what was decided, under what led to it, and end.")
@click.option("--object", "object_", metavar="OBJECT", help="With --tree: only of this one, as hostler why names it.")
@click.option("--limit", type=click.IntRange(1, tree.MOST), help="With --tree: the newest so many.  [default: 100]")
@show.output_option
@server_options
def events(
    *,
    since: str | None,
    kind: tuple[str, ...],
    count: int | None,
    as_tree: bool,
    object_: str | None,
    limit: int | None,
    output: str,
) -> None:
    """Show what happens to machines, nodes, slices and the inventory, as it happens; Ctrl-C ends it.

    A connection that breaks is taken up again where it broke: each event is shown once. With --since, what happened in
    between is shown first. With --tree, decisions and wishes are shown instead, each under what led to it.
    """
    live, past = (since, count, *kind), (object_, limit)
    if as_tree and any(live):
        raise click.UsageError("--tree shows what was decided: --since, --kind and --count are for what happens")
    if not as_tree and any(past):
        raise click.UsageError("--object and --limit are for --tree")
    if as_tree:
        complete(_tree(chosen_server(), object_, limit or 100, output))
    else:
        complete(_events(chosen_server(), since, kind, count, output))


async def _tree(server: Server, object_: str | None, limit: int, output: str) -> None:
    async with reached(server) as client:
        page = await _past(client, object_, limit)
    if output != "table":
        show.emit(msgspec.to_builtins(page), output)
        return
    if not page.items:
        click.echo("nothing was decided or wished for that is still kept", err=True)
        return
    for line in tree.grown([*page.items, *page.before]):
        click.echo(line)
    if page.unreadable:
        unread = counted(page.unreadable, "record cannot be read, and is", "records cannot be read, and are")
        click.echo(f"{unread} left out", err=True)
    if page.after is not None:
        click.echo(f"there may be older ones; {tree.more(limit)}", err=True)


async def _past(client: Client, object_: str | None, limit: int) -> TracePage:
    """The newest so many, as one page. The server's may be short, or empty, and not be the last."""
    items: list[TraceView] = []
    before: dict[str, TraceView] = {}
    unreadable, after, more = 0, None, True
    while more:
        page = await client.traces.list(object_, limit=limit - len(items), after=after)
        items += page.items
        before |= {view.id: view for view in page.before}
        unreadable, after = unreadable + page.unreadable, page.after
        more = after is not None and len(items) < limit
    shown = {view.id for view in items}
    led = tuple(view for view in before.values() if view.id not in shown)
    return TracePage(items=tuple(items), before=led, unreadable=unreadable, after=after)


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
    if output != "table":
        return show.document(plain, output)
    if view.type == "reset":
        return f"{datetime.now().astimezone():%H:%M:%S}  what lies between is lost: list again  [{number}]\n"
    what = "deleted" if view.type == "delete" else _said(view)
    return f"{datetime.now().astimezone():%H:%M:%S}  {view.of:<6}  {show.safe(view.subject)}  {what}  [{number}]\n"


_SAID = (
    *("state", "lifecycle", "power", "phase", "artifact", "node", "node-id", "address", "fence", "detail"),
    *("enabled", "condition", "instances"),
)


def _said(view: EventView) -> str:
    record = view.record or {}
    words: list[str] = []
    for name in _SAID:
        value = record.get(name)
        if value not in (None, "", 0):
            words.append(f"{name}={value}")
    return show.safe(" ".join(words) or "written")
