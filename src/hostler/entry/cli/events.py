"""`hostler events`, `hostler why` and `hostler audit`: what happened, why, and who asked for it."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from hostler.entry.cli import show
from hostler.entry.cli.app import LazyGroup
from hostler.entry.cli.failure import note
from hostler.entry.cli.options import (
    PAGE,
    chosen_server,
    complete,
    open_chosen,
    open_client,
    project_options,
    redacted,
    server_options,
    show_all,
    store_option,
    with_client,
)
from hostler.errors import Damaged, HostlerError
from hostler.kit.plural import counted
from hostler.model.control_api import Sort, TracePage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hostler.client import Client
    from hostler.entry.cli.options import Server
    from hostler.model.access_api import AuditElsewhere, AuditView
    from hostler.model.control_api import EventView, TraceView, WhyView
    from hostler.ports.audit_files import DayFile


KINDS = (
    *("vm", "handle", "lab", "node", "alive", "leader", "blueprint", "deployment", "slice", "endpoint"),
    *("workload", "region", "zone", "rack", "blade", "pdu", "tor"),
)
UNKNOWN = "--:--:--"
"""Shown for a time that is no longer known."""
MOST = 1000
"""The largest number of entries that a command shows."""


def time_of_day(at: float | None, *, day: bool = False) -> str:
    """Format a time of day in local time; with `day`, include the date."""
    if at is None:
        return UNKNOWN
    then = datetime.fromtimestamp(at).astimezone()
    return f"{then:%Y-%m-%d %H:%M:%S}" if day else f"{then:%H:%M:%S}"


def spans_days(views: Sequence[TraceView]) -> bool:
    """Return whether the entries span more than one day."""
    return len({time_of_day(view.at, day=True)[:10] for view in views if view.at is not None}) > 1


def see_more(limit: int) -> str:
    """Suggest how to see the entries beyond a limit."""
    return f"show more: --limit {min(MOST, limit * 5)}" if limit < MOST else "GET /v1/decisions has all, page by page"


def tree_lines(views: Sequence[TraceView]) -> Iterator[str]:
    """Yield the lines of all entries as trees, oldest first."""
    days = spans_days(views)
    known = {view.id for view in views}
    children: dict[str, list[TraceView]] = {}
    for view in sorted(views, key=lambda view: (view.revision, view.id)):
        children.setdefault(view.parent if view.parent in known else "", []).append(view)
    # Iterative, because a tree can be as deep as the history is long.
    waiting = [("", "", view) for view in reversed(children.get("", []))]
    while waiting:
        before, branch, view = waiting.pop()
        yield f"{time_of_day(view.at, day=days)}  {before}{branch}{_entry_line(view)}"
        below = children.get(view.id, [])
        inside = before + {"": "", "├ ": "│ ", "└ ": "  "}[branch]
        for place, child in reversed(list(enumerate(below))):
            waiting.append((inside, "└ " if place == len(below) - 1 else "├ ", child))


def _entry_line(view: TraceView) -> str:
    if view.sort is Sort.WISH:
        return show.safe(f"{view.subject}: {view.what}, requested by {view.actor}")
    led = "… " if view.open else ""
    return show.safe(f"{led}{view.subject}: {view.why or view.what} ({view.actor})")


def chain_lines(views: Sequence[TraceView], about: str) -> Iterator[str]:
    """Yield the chain of causes of `about`, newest first. A line names its subject only if it is not `about`."""
    days = spans_days(views)
    for place, view in enumerate(views):
        branch = "└" if place == len(views) - 1 else "├"
        subject = "" if view.subject == about else f"{view.subject}: "
        by = "" if view.sort is Sort.WISH else f"{view.actor}, "
        text = f"{subject}{view.why or view.what} ({by}{time_of_day(view.at, day=days)})"
        yield show.safe(f"{branch} {text}")


@click.command()
@click.option("--since", metavar="ID", help="Start after the event with this id (shown in brackets).")
@click.option("--kind", type=click.Choice(KINDS), multiple=True, help="Only events of this kind; repeatable.")
@click.option("--count", type=click.IntRange(min=1), help="End after this many events.")
@click.option("--tree", "as_tree", is_flag=True, help="Show past decisions as a tree under their causes, and end.")
@click.option("--object", "object_", metavar="OBJECT", help="With --tree: only this object, as in hostler why.")
@click.option("--limit", type=click.IntRange(1, MOST), help="With --tree: newest entries to show.  [default: 100]")
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
    async with open_client(server) as client:
        page = await _past(client, object_, limit)
    if output != "table":
        show.emit(msgspec.to_builtins(page), output)
        return
    if not page.items:
        click.echo("no decisions or requests are kept", err=True)
        return
    for line in tree_lines([*page.items, *page.before]):
        click.echo(line)
    if page.unreadable:
        unread = counted(page.unreadable, "unreadable record is", "unreadable records are")
        click.echo(f"{unread} left out", err=True)
    if page.after is not None:
        click.echo(f"there may be older ones; {see_more(limit)}", err=True)


async def _past(client: Client, object_: str | None, limit: int) -> TracePage:
    """Return the newest `limit` entries as one page. A page of the server may be short or empty and not the last."""
    items: list[TraceView] = []
    before: dict[str, TraceView] = {}
    unreadable, after, more = 0, None, True
    while more:
        page = await client.decisions.list(object_, limit=limit - len(items), after=after)
        items += page.items
        before |= {view.id: view for view in page.before}
        unreadable, after = unreadable + page.unreadable, page.after
        more = after is not None and len(items) < limit
    shown = {view.id for view in items}
    led = tuple(view for view in before.values() if view.id not in shown)
    return TracePage(items=tuple(items), before=led, unreadable=unreadable, after=after)


async def _events(server: Server, since: str | None, kinds: tuple[str, ...], count: int | None, output: str) -> None:
    shown = 0
    async with open_client(server) as client, client.events(after=since, kinds=kinds) as stream:
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
    what = "deleted" if view.type == "delete" else _text_of(view)
    return f"{datetime.now().astimezone():%H:%M:%S}  {view.of:<6}  {show.safe(view.subject)}  {what}  [{number}]\n"


_SAID = (
    *("state", "lifecycle", "power", "phase", "artifact", "node", "node-id", "address", "fence", "detail"),
    *("enabled", "condition", "instances"),
)


def _text_of(view: EventView) -> str:
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
    "--limit", type=click.IntRange(1, MOST), default=20, show_default=True, help="The largest number of steps."
)
@click.option("--reasons", is_flag=True, help="Also show the reasons that each decision weighed.")
@show.output_option
@project_options
@with_client
async def why(client: Client, *, object_: str, limit: int, reasons: bool, output: str, org: str, project: str) -> None:
    """Explain the state of OBJECT: each decision that led to it, newest first, down to the original request.

    OBJECT is vm/NAME (in --org and --project), vm/ORG/PROJECT/NAME, node/NAME, rack/NAME[/BLADE], lab/USER,
    workload/NAME[/NUMBER], blueprint/NAME or slice/GROUP:NAME; or a unique name or id of one of them.
    """
    where = (org, project)
    found = await client.decisions.why(object_, org=where[0], project=where[1], limit=limit)
    if output != "table":
        show.emit(msgspec.to_builtins(found), output)
        return
    click.echo(show.safe(_title(found)))
    if not found.steps:
        click.echo("└ no decisions are kept for it")
    for line, step in zip(chain_lines(found.steps, found.object), found.steps):
        click.echo(line)
        if reasons:
            for reason in step.reasons:
                click.echo(show.safe(f"│   {reason.subject}: {reason.why}"))
    if found.border:
        click.echo(show.safe(f"note: {found.border}"), err=True)
    if found.filed:
        click.echo(show.safe(f"note: {found.filed}"), err=True)
    if found.cut:
        click.echo(f"some steps in between are left out; {see_more(limit)}", err=True)


def _title(found: WhyView) -> str:
    since = "" if found.since is None else f" since {time_of_day(found.since, day=spans_days(found.steps))}"
    return f"{found.object} {found.state}{since}"


COMMANDS = {
    "verify": (__name__, "verify", "Check that the audit files are unchanged."),
}


@click.group(cls=LazyGroup, commands_at=COMMANDS, invoke_without_command=True)
@click.option("--day", metavar="DAY", help="Only entries of this day, in UTC: 2026-11-15.")
@click.option("--who", metavar="USER", help="Only entries of this account.")
@click.option("--verb", metavar="VERB", help="Only this verb, or verbs that start with it: vm.")
@click.option("--subject", metavar="TEXT", help="Only entries whose key or machine name contains TEXT.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="Show the newest ones.")
@show.output_option
@server_options
def audit(*, limit: int, output: str, **wanted: str | None) -> None:
    """Show who wrote what, newest first: the entries in the store and those in the audit files."""
    if click.get_current_context().invoked_subcommand is None:
        complete(_audit(chosen_server(), limit, output, wanted))


async def _audit(server: Server, limit: int, output: str, wanted: dict[str, str | None]) -> None:
    lines: list[AuditView] = []
    after: str | None = None
    elsewhere: Sequence[AuditElsewhere] = ()
    more = True
    async with open_client(server) as client:
        while more:
            count = min(PAGE, limit - len(lines))
            page = await client.control.audit(newest=True, limit=count, after=after, **wanted)
            lines += page.items
            after, elsewhere = page.after, page.elsewhere
            more = after is not None and len(lines) < limit
    heads = ("WHEN", "WHO", "DID", "TO WHAT", "REVISION", "FROM")
    show_all(lines, output, heads, _audit_row, "no matching audit entries")
    for files in elsewhere:
        span = files.first if files.first == files.last else f"{files.first} to {files.last}"
        found = counted(files.lines, "line is", "lines are")
        note(f"incomplete: {found} in files on {files.host}, {files.folder} ({span}); ask the server there")


def _audit_row(line: AuditView) -> Sequence[str]:
    when = datetime.fromtimestamp(line.at, UTC).strftime("%Y-%m-%d %H:%M:%S")
    revision = str(line.after) if line.after else "-"
    return (when, *map(show.safe, (line.who, line.verb, line.name or line.subject, revision, line.source)))


@click.command()
@click.option("--data", type=click.Path(path_type=Path), help="The data folder.  [env: HOSTLER_DATA]")
@click.option("--no-store", is_flag=True, help="Check only the files, not the hashes recorded in the store.")
@store_option
def verify(data: Path | None, no_store: bool, store_url: str | None) -> None:
    """Check that the audit files on this machine are unchanged; exit code 8 if they are not.

    Each line carries a hash of all lines before it, and the store records the newest hash. A changed, removed or added
    line breaks the chain. A person who can write both the files and the store can hide a change: copy the files, or
    the hashes that this command prints, to a place that this machine cannot write to.
    """
    from hostler.settings import load
    from hostler.wiring import check_audit_files

    settings = load({} if data is None else {"data": str(data)})
    folder = settings.data
    expected = {} if no_store else complete(_recorded_files(store_url or settings.store, folder))
    found = check_audit_files(folder, expected)
    for one in found:
        state = "; ".join(one.problems) or f"unbroken, ends with {one.chain[:16]}"
        click.echo(f"{one.day}  {counted(one.lines, 'line')}  {state}")
    broken = sum(bool(one.problems) for one in found)
    if broken:
        files = counted(broken, "file is", "files are")
        raise Damaged(f"audit files {folder / 'audit'}: {files} not as written; compare with a copy")
    if not found:
        note(f"{folder / 'audit'}: no files yet; the whole audit log is in the store")


async def _recorded_files(url: str, data: Path) -> dict[str, DayFile]:
    """Return what the store recorded about the files in this folder."""
    from hostler.keys.families import AUDIT_FILE
    from hostler.ports.audit_files import DayFile
    from hostler.wiring import open_audit_files

    if not (data / "audit" / "place").exists():
        return {}
    place = open_audit_files(data).place
    try:
        async with open_chosen(url, create=False) as store:
            recorded = (await AUDIT_FILE.list(store, strict=False)).entries
    except HostlerError as error:
        note(f"{redacted(url)}: not compared with the store: {error}")
        return {}
    own = (entry for entry in recorded if entry.parts["place"] == place)
    return {entry.parts["day"]: DayFile(entry.parts["day"], entry.value.lines, entry.value.chain) for entry in own}
