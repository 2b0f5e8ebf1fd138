"""`hostler bench machines`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click

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
    from hostler.entry.bench import machines as bench
    from hostler.entry.cli.bench_report import report
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
    load = f"{before:.1f} before, {os.getloadavg()[0]:.1f} after"
    report("machines", rows, json_file, markdown_file, load=load)
