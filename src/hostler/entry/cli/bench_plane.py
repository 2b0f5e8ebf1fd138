"""`hostler bench plane`."""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from hostler.entry.bench.plane_row import Row

PARTS = ("create", "place", "get", "many", "wake", "help")


def _parts(_: click.Context, __: click.Parameter, text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(","))
    if not all(part in PARTS for part in found):
        raise click.BadParameter(f"{text!r}: give some of {','.join(PARTS)}")
    return found


@click.command()
@click.option("--etcd", metavar="URL", help="Also on this store, which must be empty, and is emptied.")
@click.option("--parts", callback=_parts, default=",".join(PARTS), show_default=True, help="What to measure.")
@click.option("--seconds", type=click.FloatRange(min=0.1), default=4.0, show_default=True, help="For each rate.")
@click.option("--machines", type=click.IntRange(min=1), default=100_000, show_default=True, help="In the full store.")
@click.option("--nodes", type=click.IntRange(min=1), default=1_000, show_default=True, help="In the full store.")
@click.option("--agents", type=click.IntRange(min=1), default=1_000, show_default=True, help="On one store.")
@click.option("--place-nodes", type=click.IntRange(min=1), default=5_000, show_default=True, help="To place on.")
@click.option("--json", "json_file", type=click.Path(path_type=Path, allow_dash=True), help="Write JSON; - is stdout.")
@click.option("--markdown", "markdown_file", type=click.Path(path_type=Path), help="Write the table as Markdown.")
def plane(  # noqa: PLR0917
    etcd: str | None,
    parts: tuple[str, ...],
    seconds: float,
    machines: int,
    nodes: int,
    agents: int,
    place_nodes: int,
    json_file: Path | None,
    markdown_file: Path | None,
) -> None:
    """Measure the control plane on new embedded stores: creates, placement, the API, many machines, many agents.

    Rates stand beside what the bare store or the bare web framework does in alternating rounds.
    """
    import msgspec

    from hostler.entry.bench import plane as bench
    from hostler.entry.bench.plane_row import markdown
    from hostler.entry.cli.progress import Ticker
    from hostler.entry.cli.target import complete

    with tempfile.TemporaryDirectory(prefix="hostler-bench-") as folder, Ticker() as ticker:
        plan = bench.Plan(
            folder=Path(folder),
            etcd=etcd,
            parts=parts,
            seconds=seconds,
            machines=machines,
            nodes=nodes,
            agents=agents,
            place_nodes=place_nodes,
            # Small runs are small throughout.
            place_machines=max(30, min(6_000, place_nodes * 2)),
            pages=max(10, min(1_000, machines // 100)),
            changes=max(3, min(20, agents // 10)),
            starts=10 if seconds >= 1 else 3,
        )
        rows = complete(bench.run(plan, ticker.tell))
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
    plain = [msgspec.to_builtins(row) | {"reached": row.reached} for row in rows]
    data = json.dumps({"machine": machine, "rows": plain}, indent=2)
    if json_file is not None and str(json_file) == "-":
        click.echo(data)
    else:
        _show(rows)
        if json_file is not None:
            json_file.write_text(data + "\n", encoding="utf-8")
    if markdown_file is not None:
        markdown_file.write_text(markdown(rows), encoding="utf-8")


def _show(rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    from hostler.entry.bench.plane_row import HEADS, cells

    table = Table(title="control plane", title_justify="left")
    for number, head in enumerate(HEADS):
        table.add_column(head, justify="left" if number in (0, 3, 4) else "right", no_wrap=True)
    for row in cells(rows):
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
