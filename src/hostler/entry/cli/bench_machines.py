"""`hostler bench machines`."""

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

PARTS = ("one", "ten", "warm", "make", "many")


def _parts(_: click.Context, __: click.Parameter, text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(","))
    if not all(part in PARTS for part in found):
        raise click.BadParameter(f"{text!r}: give some of {','.join(PARTS)}")
    return tuple(part for part in PARTS if part in found)  # what is kept warm for one part must not help another


@click.command()
@click.option("--parts", callback=_parts, default=",".join(PARTS), show_default=True, help="What to measure.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Of one machine.")
@click.option("--at-once", type=click.IntRange(min=1), default=10, show_default=True, help="As memory allows.")
@click.option("--at-once-rounds", type=click.IntRange(min=1), default=2, show_default=True, help="Of several.")
@click.option("--many", type=click.IntRange(min=2), default=50, show_default=True, help="Machines of one agent.")
@click.option(
    "--images",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A folder of images that has `tiny`; without one, it is built.",
)
@click.option("--json", "json_file", type=click.Path(path_type=Path, allow_dash=True), help="Write JSON; - is stdout.")
@click.option("--markdown", "markdown_file", type=click.Path(path_type=Path), help="Write the table as Markdown.")
def machines(  # noqa: PLR0917
    parts: tuple[str, ...],
    rounds: int,
    at_once: int,
    at_once_rounds: int,
    many: int,
    images: Path | None,
    json_file: Path | None,
    markdown_file: Path | None,
) -> None:
    """Measure real machines (QEMU): from a request to a login, several at once, warm and cold, and what they cost.

    Starts stand beside the same command line of QEMU without a control plane, in alternating rounds.
    """
    import msgspec

    from hostler.entry.bench import machines as bench
    from hostler.entry.bench.plane_row import markdown
    from hostler.entry.cli.progress import Ticker
    from hostler.entry.cli.target import complete

    with tempfile.TemporaryDirectory(prefix="hostler-bench-") as folder, Ticker() as ticker:
        plan = bench.Plan(
            folder=Path(folder),
            images=images,
            rounds=rounds,
            at_once=at_once,
            at_once_rounds=at_once_rounds,
            many=many,
            parts=parts,
        )
        before = os.getloadavg()[0]
        rows = complete(bench.run(plan, ticker.tell))
    load = {"before": round(before, 1), "after": round(os.getloadavg()[0], 1)}
    machine = {
        "cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform(), "load": load
    }  # fmt: skip
    plain = [msgspec.to_builtins(row) | {"reached": row.reached} for row in rows]
    data = json.dumps({"machine": machine, "rows": plain}, indent=2)
    if json_file is not None and str(json_file) == "-":
        click.echo(data)
    else:
        _show(rows)
        click.echo(f"load of this machine: {load['before']} before, {load['after']} after")
        if json_file is not None:
            json_file.write_text(data + "\n", encoding="utf-8")
    if markdown_file is not None:
        markdown_file.write_text(markdown(rows), encoding="utf-8")


def _show(rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    from hostler.entry.bench.plane_row import HEADS, cells

    table = Table(title="machines", title_justify="left")
    for number, head in enumerate(HEADS):
        table.add_column(head, justify="left" if number in (0, 3, 4) else "right", no_wrap=True)
    for row in cells(rows):
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
