"""`hostler bench sim`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hostler.entry.cli.bench_option import parts_option, report_options

if TYPE_CHECKING:
    from pathlib import Path

PARTS = ("scale", "ratio", "placement", "curve")


def _sizes(_: click.Context, __: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 20 or max(found) > 100_000:
        raise click.BadParameter(f"{text!r}: give whole numbers from 20 to 100000, like 100,1000,10000")
    return found


@click.command()
@parts_option(PARTS)
@click.option("--blades", type=click.IntRange(min=20), default=10_000, show_default=True, help="Large datacenter.")
@click.option("--machines", type=click.IntRange(min=1), default=100_000, show_default=True, help="Large datacenter.")
@click.option("--ratio-blades", type=click.IntRange(min=1), default=100, show_default=True, help="Small datacenter.")
@click.option("--ratio-seconds", type=click.FloatRange(min=1), default=2_000.0, show_default=True, help="Virtual time.")
@click.option("--nodes", type=click.IntRange(min=40), default=10_000, show_default=True, help="Nodes to place on.")
@click.option("--instances", type=click.IntRange(min=1), default=1_000_000, show_default=True, help="To place.")
@click.option("--curve", callback=_sizes, default="100,1000,10000", show_default=True, help="Blades, for one fault.")
@report_options
def sim(json_file: Path | None, markdown_file: Path | None, **sizes: object) -> None:
    """Measure the simulator: an hour of a large datacenter, speed against real time, placement, one fault."""
    from hostler.entry.bench import sim as bench
    from hostler.entry.cli.bench_report import report
    from hostler.entry.cli.progress import Ticker

    with Ticker() as ticker:
        rows = bench.run(bench.Plan(**sizes), ticker.tell)  # type: ignore[arg-type]
    report("simulation", rows, json_file, markdown_file)
