"""`hostler bench machines`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click

from hostler.entry.cli.bench_option import images_option, parts_option, report_options

PARTS = ("one", "ten", "warm", "make", "many")


@click.command()
@parts_option(PARTS, sort=True)  # fixed order: machines kept warm for one part must not speed up another
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Rounds with one machine.")
@click.option("--at-once", type=click.IntRange(min=1), default=10, show_default=True, help="Limited by free memory.")
@click.option("--at-once-rounds", type=click.IntRange(min=1), default=2, show_default=True, help="Rounds with several.")
@click.option("--many", type=click.IntRange(min=2), default=50, show_default=True, help="Machines on one agent.")
@images_option
@report_options
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
    """Measure QEMU machines: time from request to login, several at once, warm and cold starts, and overhead.

    Each start is compared with the same QEMU command line without a control plane, in alternating rounds.
    """
    from hostler.entry.bench import machines as bench
    from hostler.entry.cli.bench_report import report
    from hostler.entry.cli.progress import Ticker
    from hostler.entry.cli.store_option import complete

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
    load = f"{before:.1f} before, {os.getloadavg()[0]:.1f} after"
    report("machines", rows, json_file, markdown_file, load=load)
