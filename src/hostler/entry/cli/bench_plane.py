"""`hostler bench plane`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from hostler.entry.cli.bench_option import parts_option, report_options

PARTS = ("create", "place", "get", "many", "wake", "help")


@click.command()
@click.option("--etcd", metavar="URL", help="Also measure on this store, which must be empty. It is emptied again.")
@parts_option(PARTS)
@click.option("--seconds", type=click.FloatRange(min=0.1), default=4.0, show_default=True, help="Time per rate.")
@click.option("--machines", type=click.IntRange(min=1), default=100_000, show_default=True, help="In the full store.")
@click.option("--nodes", type=click.IntRange(min=1), default=1_000, show_default=True, help="In the full store.")
@click.option("--agents", type=click.IntRange(min=1), default=1_000, show_default=True, help="Agents on one store.")
@click.option("--place-nodes", type=click.IntRange(min=1), default=5_000, show_default=True, help="To place on.")
@report_options
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
    """Measure the control plane on new embedded stores: creates, placement, API, many machines, many agents.

    Rates are compared with the bare store or the bare web framework, in alternating rounds.
    """
    from hostler.entry.bench import plane as bench
    from hostler.entry.cli.bench_report import report
    from hostler.entry.cli.progress import Ticker
    from hostler.entry.cli.store_option import complete

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
            # A small run uses small numbers everywhere.
            place_machines=max(30, min(6_000, place_nodes * 2)),
            pages=max(10, min(1_000, machines // 100)),
            changes=max(3, min(20, agents // 10)),
            starts=10 if seconds >= 1 else 3,
        )
        rows = complete(bench.run(plan, ticker.tell))
    report("control plane", rows, json_file, markdown_file)
