"""`hostler bench election`."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hostler.entry.cli.store_option import path_url
from hostler.errors import Invalid, NotFound

if TYPE_CHECKING:
    from hostler.entry.bench.election import Entrant

PEERS = ("tooz", "redis-py", "kazoo")


@click.command()
@click.option("--store", "urls", multiple=True, metavar="URL", help="A storage to measure; repeatable.")
@click.option(
    "--peer",
    "peers",
    multiple=True,
    metavar="NAME=URL",
    help=f"Compare with another library ({', '.join(PEERS)}); repeatable.",
)
@click.option(
    "--peers-python",
    type=click.Path(dir_okay=False),
    default=".local/bench-venv/bin/python",
    show_default=True,
    help="The Python interpreter with the peer libraries (scripts/bench-elections installs them).",
)
@click.option("--ttl", type=click.FloatRange(min=1, max=60), default=2.0, show_default=True, help="Leadership TTL.")
@click.option("--rounds", type=click.IntRange(min=1), default=100, show_default=True, help="Takeovers after release.")
@click.option("--kills", type=click.IntRange(min=0), default=5, show_default=True, help="Takeovers after kill -9.")
@click.option("--leaderships", type=click.IntRange(min=0), default=1000, show_default=True, help="In one process.")
@click.option("--seconds", type=click.FloatRange(min=1), default=10.0, show_default=True, help="To watch renewals.")
@click.option("--json", "json_file", type=click.Path(path_type=Path, allow_dash=True), help="Write JSON; - is stdout.")
@click.option("--markdown", "markdown_file", type=click.Path(path_type=Path), help="Write the tables as Markdown.")
def election(  # noqa: PLR0917
    urls: tuple[str, ...],
    peers: tuple[str, ...],
    peers_python: str,
    ttl: float,
    rounds: int,
    kills: int,
    leaderships: int,
    seconds: float,
    json_file: Path | None,
    markdown_file: Path | None,
) -> None:
    """Measure the time without a leader, after a release and after kill -9, in units of the TTL.

    Two processes take turns on each storage. Default: a new embedded store. The benchmark uses key 1 of the storage, so
    no replica may use that storage at the same time.
    """
    from hostler.entry.bench import election_report
    from hostler.entry.bench.election import Plan, run
    from hostler.entry.cli.progress import Ticker

    rivals = tuple(_entrant(text, peers_python) for text in peers)
    with tempfile.TemporaryDirectory(prefix="hostler-bench-") as folder, Ticker() as ticker:
        own = urls or (path_url("sqlite", Path(folder) / "bench.db"),)
        plan = Plan(
            entrants=(*map(_own, own), *rivals),
            peers_python=peers_python,
            ttl=ttl,
            rounds=rounds,
            kills=kills,
            leaderships=leaderships,
            seconds=seconds,
        )
        found = run(plan, ticker.tell)
    if json_file is not None and str(json_file) == "-":
        click.echo(json.dumps(found, indent=2))
    else:
        _show(found)
        if json_file is not None:
            json_file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if markdown_file is not None:
        markdown_file.write_text(election_report.markdown(found), encoding="utf-8")


def _own(url: str) -> Entrant:
    from hostler.entry.bench.election import Entrant
    from hostler.wiring import open_ttl_storage

    if url.startswith("memory:"):
        raise Invalid("--store memory://: two processes cannot share it; name another one")
    open_ttl_storage(url)  # raises Invalid if the URL does not name a TTL storage
    return Entrant("hostler", url)


def _entrant(text: str, python: str) -> Entrant:
    from hostler.entry.bench.election import Entrant

    kind, _, url = text.partition("=")
    if kind not in PEERS or "://" not in url:
        raise Invalid(f"--peer {text!r}: must be NAME=URL, and NAME one of {', '.join(PEERS)}")
    if not Path(python).exists():
        raise NotFound(f"{python}: no such interpreter; run scripts/bench-elections, which installs the peers")
    return Entrant(kind, url)


def _show(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from hostler.entry.bench import election_report as report

    console = Console(width=None if sys.stdout.isatty() else 160)
    tables = [("takeovers", report.TAKEOVER_HEADS, report.takeovers(found))]
    if found["leaderships"]:
        tables.append(("many leaderships in one process", report.MANY_HEADS, report.many(found)))
    for title, heads, rows in tables:
        table = Table(title=f"{title}, ttl {found['ttl']:g} s" if title == "takeovers" else title, title_justify="left")
        for number, head in enumerate(heads):
            table.add_column(head, justify="right" if number else "left", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    for line in report.ratios(found):
        click.echo(line)
