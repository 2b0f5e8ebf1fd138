"""`hostler audit`: show the audit log, and verify its files."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hostler.entry.cli import listing, show
from hostler.entry.cli.app import LazyGroup
from hostler.entry.cli.failure import note
from hostler.entry.cli.server_options import chosen_server, reached, server_options
from hostler.entry.cli.store_option import complete, opened, redacted, store_option
from hostler.errors import Damaged, HostlerError
from hostler.kit.plural import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.entry.cli.server_options import Server
    from hostler.model.api import AuditElsewhere, AuditView
    from hostler.ports.audit_files import DayFile

COMMANDS = {
    "verify": ("hostler.entry.cli.audit", "verify", "Check that the audit files are unchanged."),
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
    async with reached(server) as client:
        while more:
            count = min(listing.PAGE, limit - len(lines))
            page = await client.control.audit(newest=True, limit=count, after=after, **wanted)
            lines += page.items
            after, elsewhere = page.after, page.elsewhere
            more = after is not None and len(lines) < limit
    heads = ("WHEN", "WHO", "DID", "TO WHAT", "REVISION", "FROM")
    listing.show_all(lines, output, heads, _row, "no matching audit entries")
    for files in elsewhere:
        span = files.first if files.first == files.last else f"{files.first} to {files.last}"
        found = counted(files.lines, "line is", "lines are")
        note(f"incomplete: {found} in files on {files.host}, {files.folder} ({span}); ask the server there")


def _row(line: AuditView) -> Sequence[str]:
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
    expected = {} if no_store else complete(_recorded(store_url or settings.store, folder))
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


async def _recorded(url: str, data: Path) -> dict[str, DayFile]:
    """Return what the store recorded about the files in this folder."""
    from hostler.keys.access import AUDIT_FILE
    from hostler.ports.audit_files import DayFile
    from hostler.wiring import open_audit_files

    if not (data / "audit" / "place").exists():
        return {}
    place = open_audit_files(data).place
    try:
        async with opened(url, create=False) as store:
            recorded = (await AUDIT_FILE.list(store, strict=False)).entries
    except HostlerError as error:
        note(f"{redacted(url)}: not compared with the store: {error}")
        return {}
    own = (entry for entry in recorded if entry.parts["place"] == place)
    return {entry.parts["day"]: DayFile(entry.parts["day"], entry.value.lines, entry.value.chain) for entry in own}
