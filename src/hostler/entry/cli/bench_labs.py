"""`hostler bench labs`."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from hostler.entry.cli.bench_option import images_option, parts_option, report_options
from hostler.errors import Invalid

PARTS = ("queue", "live", "sweep", "claim")


@click.command()
@click.option("--redis", "redis", multiple=True, metavar="URL", help="An empty Redis, which is flushed; repeatable.")
@click.option(
    "--peers",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A folder with an environment for each peer queue (scripts/bench-labs creates it). Default: no peers.",
)
@parts_option(PARTS)
@click.option("--requests", type=click.IntRange(min=100), default=10_000, show_default=True, help="Requests per run.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Rounds over all queues.")
@click.option("--live", type=click.IntRange(min=1), default=1_000, show_default=True, help="Idle labs.")
@click.option("--quiet", type=click.FloatRange(min=0.1), default=10.0, show_default=True, help="Idle seconds.")
@click.option("--labs", type=click.IntRange(min=10), default=10_000, show_default=True, help="Labs in the sweep.")
@click.option("--claims", type=click.IntRange(min=1), default=20, show_default=True, help="Warm machines to claim.")
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
    """Measure labs: requests per second, writes of idle labs, sweeps, and claims of warm machines on QEMU.

    Each request is in the store, on disk, before it is acknowledged. The peer queues process empty tasks on the same
    Redis, in alternation with Hostler.
    """
    from hostler.entry.bench import labs as bench
    from hostler.entry.cli.bench_report import report
    from hostler.entry.cli.progress import Ticker
    from hostler.entry.cli.store_option import complete

    if not redis and set(parts) - {"claim"}:
        raise Invalid("--redis: missing; name an empty Redis, which is flushed, or run scripts/bench-labs")
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
