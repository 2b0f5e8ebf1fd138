"""`hostler bench placement`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from hostler.entry.cli.bench_option import report_options

if TYPE_CHECKING:
    from pathlib import Path

    from hostler.entry.bench.placement import Row


def _sizes(_: click.Context, __: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 10 or max(found) > 100_000:
        raise click.BadParameter(f"{text!r}: give whole numbers from 10 to 100000, like 100,1000,5000")
    return found


@click.command()
@click.option("--nodes", callback=_sizes, default="100,1000,5000", show_default=True, help="Cluster sizes.")
@click.option("--seconds", type=click.FloatRange(min=0.1), default=2.0, show_default=True, help="Time per measurement.")
@report_options
def placement(nodes: tuple[int, ...], seconds: float, json_file: Path | None, markdown_file: Path | None) -> None:
    """Measure placements per second, on one core and without a store."""
    import msgspec

    from hostler.entry.bench import placement as bench
    from hostler.entry.cli.progress import Ticker

    with Ticker() as ticker:
        rows = bench.run(nodes, seconds, ticker.tell)
    data = json.dumps({"rows": msgspec.to_builtins(rows)}, indent=2)
    if json_file is not None and str(json_file) == "-":
        click.echo(data)
    else:
        _show(rows)
        if json_file is not None:
            json_file.write_text(data + "\n", encoding="utf-8")
    if markdown_file is not None:
        markdown_file.write_text(bench.markdown(rows), encoding="utf-8")


def _show(rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    from hostler.entry.bench.placement import HEADS, cells

    table = Table(title="placement", title_justify="left")
    for number, head in enumerate(HEADS):
        table.add_column(head, justify="right" if number else "left", no_wrap=True)
    for row in cells(rows):
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
