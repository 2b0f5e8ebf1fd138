"""`hostler bench`."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hostler.entry.cli.bench_deployments import deployments
from hostler.entry.cli.bench_election import election
from hostler.entry.cli.bench_invoke import invoke
from hostler.entry.cli.bench_labs import labs
from hostler.entry.cli.bench_machines import machines
from hostler.entry.cli.bench_placement import placement
from hostler.entry.cli.bench_plane import plane
from hostler.entry.cli.bench_sim import sim
from hostler.entry.cli.store_option import complete, path_url, redacted
from hostler.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hostler.entry.bench.run import Row

MILLION = 1_000_000


def _clients(_: click.Context, __: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise click.BadParameter(f"{text!r}: give whole numbers above 0, like 1,16,64")
    return found


@click.group()
def bench() -> None:
    """Measure stores, elections, placement, the control plane, machines and labs on this machine."""


@bench.command()
@click.argument("url", required=False)
@click.option("--seconds", type=click.FloatRange(min=0.1), default=2.0, show_default=True, help="Time per measurement.")
@click.option("--clients", callback=_clients, default="1,16,64", show_default=True, help="Numbers of parallel clients.")
@click.option("--peer", metavar="URL", help="Another store to compare with.")
@click.option("--million", is_flag=True, help="Also measure a store of a million keys (sqlite only; half a minute).")
@click.option("--json", "json_file", type=click.Path(path_type=Path, allow_dash=True), help="Write JSON; - is stdout.")
@click.option("--markdown", "markdown_file", type=click.Path(path_type=Path), help="Write the tables as Markdown.")
def store(  # noqa: PLR0917
    url: str | None,
    seconds: float,
    clients: tuple[int, ...],
    peer: str | None,
    million: bool,
    json_file: Path | None,
    markdown_file: Path | None,
) -> None:
    """Compare the store at URL with its bare engine, in alternating rounds. Default: a new embedded store.

    The benchmark writes under its own prefix and deletes it afterwards. A ratio is the rate of the store divided by the
    rate of the bare engine or peer.
    """
    from hostler.entry.bench import report

    if million and url is not None and not url.startswith("sqlite:"):
        raise Invalid("--million: is for sqlite stores; leave it out, or name a sqlite:// URL")
    with tempfile.TemporaryDirectory(prefix="hostler-bench-", dir=_beside(url)) as folder:
        target = url or path_url("sqlite", Path(folder) / "bench.db")
        rows = _measure(target, seconds, clients, peer)
        fsync_us = report.fdatasync_us(Path(folder))
        found = _million(Path(folder)) if million else None
    data = report.plain(redacted(target), rows, found, fsync_us)
    if json_file is not None and str(json_file) == "-":
        click.echo(json.dumps(data, indent=2))
    else:
        _show(target, rows, found)
        click.echo(f"fdatasync on this disk, median: {fsync_us:.0f} µs")
        if json_file is not None:
            json_file.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    if markdown_file is not None:
        markdown_file.write_text(report.markdown(rows, found, fsync_us), encoding="utf-8")


def _beside(url: str | None) -> Path | None:
    """Return the folder of the store that is measured, so that both sides use the same disk."""
    from hostler.entry.cli.store_option import local_path

    path = local_path(url) if url else None
    return None if path is None or not path.parent.is_dir() else path.parent


def _measure(url: str, seconds: float, clients: tuple[int, ...], peer: str | None) -> list[Row]:
    from hostler.entry.bench.run import Plan, run
    from hostler.entry.cli.progress import Ticker

    with Ticker() as ticker:
        return complete(run(Plan(url, seconds, clients, peer), ticker.tell))


def _million(folder: Path) -> dict[str, Any]:
    from hostler.entry.bench.many_keys import million

    return million(path_url("sqlite", folder / "million.db"), path_url("sqlite", folder / "empty.db"), MILLION)


def _show(url: str, rows: Sequence[Row], found: dict[str, Any] | None) -> None:
    from rich.console import Console
    from rich.table import Table

    from hostler.entry.bench import report

    table = Table(title=redacted(url), title_justify="left")
    for number, head in enumerate(report.HEADS):
        table.add_column(head, justify="left" if number in (0, 6) else "right", no_wrap=True)
    for row in report.cells(rows):
        table.add_row(*row)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    if found is not None:
        more = Table(title="a million keys", title_justify="left", show_header=False)
        for name, value in report.million_pairs(found):
            more.add_row(name, value)
        console.print(more)


bench.add_command(election)
bench.add_command(invoke)
bench.add_command(labs)
bench.add_command(machines)
bench.add_command(placement)
bench.add_command(plane)
bench.add_command(sim)
bench.add_command(deployments)
