"""`hostler bench deployments`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hostler.entry.cli.bench_option import parts_option, report_options

if TYPE_CHECKING:
    from pathlib import Path

PARTS = ("embedded", "etcd", "loss")


@click.command()
@parts_option(PARTS)
@click.option("--nodes", type=click.IntRange(min=2), default=5_000, show_default=True, help="Simulated nodes.")
@click.option(
    "--instances", type=click.IntRange(min=1), default=1_000_000, show_default=True, help="On the embedded store."
)
@click.option("--blueprints", type=click.IntRange(min=1), default=50, show_default=True, help="Number of blueprints.")
@click.option("--etcd", default="", help="URL of an etcd. Without it, the etcd part is left out.")
@click.option("--etcd-instances", type=click.IntRange(min=1), default=100_000, show_default=True, help="On etcd.")
@report_options
def deployments(json_file: Path | None, markdown_file: Path | None, **sizes: object) -> None:
    """Measure deployments: a million slice instances on an empty cluster, and the cost of losing one node."""
    import asyncio

    from hostler.entry.bench import deployments as bench
    from hostler.entry.cli.bench_report import report
    from hostler.entry.cli.progress import Ticker

    with Ticker() as ticker:
        rows = asyncio.run(bench.measure(bench.Plan(**sizes), ticker.tell))  # type: ignore[arg-type]
    report("deployments", rows, json_file, markdown_file)
