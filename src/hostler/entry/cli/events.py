"""`hostler events` and `hostler why`."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click
import msgspec

from hostler.entry.cli import show, tree
from hostler.entry.cli.server_options import chosen_server, project_options, reached, server_options
from hostler.entry.cli.store_option import complete
from hostler.kit.plural import counted
from hostler.model.trace_api import TracePage

if TYPE_CHECKING:
    from hostler.client import Client
    from hostler.entry.cli.server_options import Server
    from hostler.model.api import EventView
    from hostler.model.trace_api import TraceView, WhyView

KINDS = (
    *("vm", "handle", "lab", "node", "alive", "leader", "blueprint", "deployment", "slice", "endpoint"),
    *("workload", "region", "zone", "rack", "blade", "pdu", "tor"),
)


@click.command()
@click.option("--since", metavar="ID", help="Start after the event with this id (shown in brackets).")
@click.option("--kind", type=click.Choice(KINDS), multiple=True, help="Only events of this kind; repeatable.")
@click.option("--count", type=click.IntRange(min=1), help="End after this many events.")
@click.option("--tree", "as_tree", is_flag=True, help="Show past decisions as a tree under their causes, and end.")
@click.option("--object", "object_", metavar="OBJECT", help="With --tree: only this object, as in hostler why.")
@click.option("--limit", type=click.IntRange(1, tree.MOST), help="With --tree: newest entries to show.  [default: 100]")
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
    """Follow the events of machines, nodes, slices and the inventory, until Ctrl-C.

    After a lost connection the command reconnects and continues: each event is shown once. With --since, the events
    since that id are shown first. With --tree, past decisions and requests are shown instead, each under its cause.
    """
    live, past = (since, count, *kind), (object_, limit)
    if as_tree and any(live):
        raise click.UsageError("--tree shows past decisions: --since, --kind and --count are for events")
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
        click.echo("no decisions or requests are kept", err=True)
        return
    for line in tree.grown([*page.items, *page.before]):
        click.echo(line)
    if page.unreadable:
        unread = counted(page.unreadable, "unreadable record is", "unreadable records are")
        click.echo(f"{unread} left out", err=True)
    if page.after is not None:
        click.echo(f"there may be older ones; {tree.more(limit)}", err=True)


async def _past(client: Client, object_: str | None, limit: int) -> TracePage:
    """Return the newest `limit` entries as one page. A page of the server may be short or empty and not the last."""
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
            # Events of one transaction share a revision; only the full id identifies one of them.
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
        return f"{datetime.now().astimezone():%H:%M:%S}  events were lost: list the objects again  [{number}]\n"
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


@click.command()
@click.argument("object_", metavar="OBJECT")
@click.option(
    "--limit", type=click.IntRange(1, tree.MOST), default=20, show_default=True, help="The largest number of steps."
)
@click.option("--reasons", is_flag=True, help="Also show the reasons that each decision weighed.")
@show.output_option
@project_options
@server_options
def why(*, object_: str, limit: int, reasons: bool, output: str, org: str, project: str) -> None:
    """Explain the state of OBJECT: each decision that led to it, newest first, down to the original request.

    OBJECT is vm/NAME (in --org and --project), vm/ORG/PROJECT/NAME, node/NAME, rack/NAME[/BLADE], lab/USER,
    workload/NAME[/NUMBER], blueprint/NAME or slice/GROUP:NAME; or a unique name or id of one of them.
    """
    complete(_why(chosen_server(), object_, limit, (org, project), reasons=reasons, output=output))


async def _why(server: Server, object_: str, limit: int, where: tuple[str, str], *, reasons: bool, output: str) -> None:
    async with reached(server) as client:
        found = await client.traces.why(object_, org=where[0], project=where[1], limit=limit)
    if output != "table":
        show.emit(msgspec.to_builtins(found), output)
        return
    click.echo(show.safe(_title(found)))
    if not found.steps:
        click.echo("└ no decisions are kept for it")
    for line, step in zip(tree.chained(found.steps, found.object), found.steps):
        click.echo(line)
        if reasons:
            for reason in step.reasons:
                click.echo(show.safe(f"│   {reason.subject}: {reason.why}"))
    if found.border:
        click.echo(show.safe(f"note: {found.border}"), err=True)
    if found.filed:
        click.echo(show.safe(f"note: {found.filed}"), err=True)
    if found.cut:
        click.echo(f"some steps in between are left out; {tree.more(limit)}", err=True)


def _title(found: WhyView) -> str:
    since = "" if found.since is None else f" since {tree.moment(found.since, day=tree.spans_days(found.steps))}"
    return f"{found.object} {found.state}{since}"
