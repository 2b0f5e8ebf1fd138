"""`hostler bench invoke`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from hostler.entry.cli.bench_option import report_options


@click.command()
@click.option("--seconds", type=click.FloatRange(min=0.1), default=6.0, show_default=True, help="Time per measurement.")
@report_options
def invoke(seconds: float, json_file: Path | None, markdown_file: Path | None) -> None:
    """Measure slice calls, compared with a bare web framework and with direct calls to the worker."""
    from hostler.entry.bench import invoke as bench
    from hostler.entry.cli.bench_report import report
    from hostler.entry.cli.progress import Ticker

    with Ticker() as ticker, tempfile.TemporaryDirectory(prefix="hostler-bench-") as folder:
        rows = bench.run(Path(folder), seconds, ticker.tell)
    report("invoke", rows, json_file, markdown_file)
