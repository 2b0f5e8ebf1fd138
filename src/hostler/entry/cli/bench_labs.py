"""`hostler bench labs`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from hostler.entry.cli.bench_option import images_option, parts_option, report_options
from hostler.errors import Invalid

PARTS = ("queue", "live", "sweep", "claim")


@click.command()
@click.option("--redis", "redis", multiple=True, metavar="URL", help="An empty one, which is emptied; may be repeated.")
@click.option(
    "--peers",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A folder with an environment for each other queue (scripts/bench-labs makes it); without it, only ours.",
)
@parts_option(PARTS)
@click.option("--requests", type=click.IntRange(min=100), default=10_000, show_default=True, help="In each run.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Of all queues in turn.")
@click.option("--live", type=click.IntRange(min=1), default=1_000, show_default=True, help="Labs that rest.")
@click.option("--quiet", type=click.FloatRange(min=0.1), default=10.0, show_default=True, help="Seconds of rest.")
@click.option("--labs", type=click.IntRange(min=10), default=10_000, show_default=True, help="In the sweep.")
@click.option("--claims", type=click.IntRange(min=1), default=20, show_default=True, help="Of guests ready ahead.")
@images_option
@report_options
def labs(  # noqa: PLR0917
    redis: tuple[str, ...],
    peers: Path | None,
    parts: tuple[str, ...],
    requests: int,
    rounds: int,
    live: int,
    quiet: float,
    labs: int,
    claims: int,
    images: Path | None,
    json_file: Path | None,
    markdown_file: Path | None,
) -> None:
    """Measure labs: requests acknowledged a second, what many labs write at rest, sweeps, and warm claims on QEMU.

    Each request is in the store, on disk, before it is acknowledged. Other queues work tasks that do nothing, at the
    same Redis, in turn with ours.
    """
    from hostler.entry.bench import labs as bench
    from hostler.entry.cli.bench_report import report
    from hostler.entry.cli.progress import Ticker
    from hostler.entry.cli.store_option import complete

    if not redis and set(parts) - {"claim"}:
        raise Invalid("--redis: name an empty Redis, which is emptied; scripts/bench-labs starts one of its own")
    with tempfile.TemporaryDirectory(prefix="hostler-bench-") as folder, Ticker() as ticker:
        plan = bench.Plan(
            folder=Path(folder),
            redis=redis,
            peers=None if peers is None else peers.absolute(),
            images=images,
            requests=requests,
            rounds=rounds,
            live=live,
            quiet=quiet,
            changes=max(1, min(10, live // 10)),
            labs=labs,
            claims=claims,
            parts=parts,
        )
        rows, said = complete(bench.run(plan, ticker.tell))
    report("labs", rows, json_file, markdown_file, **said)
