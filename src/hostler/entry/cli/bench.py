"""`hostler bench store`. The other benchmarks are in the source repository: `python -m bench`."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click
import msgspec

from hostler.entry.cli.options import complete, local_path, path_url, redacted
from hostler.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hostler.entry.store_benchmark import Baseline, Row

REMOVED = ("deployments", "election", "invoke", "labs", "machines", "placement", "plane", "sim")
"""Benchmarks that earlier releases had here; `docs/deprecations.md`."""
HEADS = (
    *("operation", "clients", "per second", "p50", "p99", "CPU"),
    *("against", "per second", "p50", "CPU", "ratio", "by CPU"),
)


class Supplement(msgspec.Struct, frozen=True):
    """A second table of the report: its key in the JSON document, its title, the figures, and the figures as text."""

    key: str
    title: str
    data: dict[str, Any]
    pairs: list[tuple[str, str]]


class BenchGroup(click.Group):
    """The group `bench`, which says where the benchmarks are that it no longer has."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] in REMOVED:
            raise Invalid(f"bench {args[0]}: is not in the installed package; {_instead(args[0])}")
        return super().resolve_command(ctx, args)


def _instead(words: str) -> str:
    return f"run `python -m bench {words}` in a checkout of the Hostler repository (docs/deprecations.md)"


def _refuse_million(_: click.Context, __: click.Parameter, wanted: bool) -> None:
    if wanted:
        raise Invalid(f"bench store --million: is not in the installed package; {_instead('store --million')}")


def _clients(_: click.Context, __: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise click.BadParameter(f"{text!r}: give whole numbers above 0, like 1,16,64")
    return found


def store_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the URL and the options of `measure_store`."""
    json_type, markdown_type = click.Path(path_type=Path, allow_dash=True), click.Path(path_type=Path)
    for parameter in (
        click.option("--markdown", "markdown_file", type=markdown_type, help="Write the tables as Markdown."),
        click.option("--json", "json_file", type=json_type, help="Write JSON; - is stdout."),
        click.option("--peer", metavar="URL", help="Another store to compare with."),
        click.option(
            "--clients", callback=_clients, default="1,16,64", show_default=True, help="Numbers of parallel clients."
        ),
        click.option(
            "--seconds", type=click.FloatRange(min=0.1), default=2.0, show_default=True, help="Time per measurement."
        ),
        click.argument("url", required=False),
    ):
        command = parameter(command)
    return command


@click.group(cls=BenchGroup)
def bench() -> None:
    """Measure a store on this machine."""


@bench.command()
@store_options
@click.option("--million", is_flag=True, hidden=True, expose_value=False, callback=_refuse_million)
def store(url: str | None, **options: Any) -> None:
    """Measure the store at URL, and compare it with --peer in alternating rounds. Default: a new embedded store.

    The benchmark writes under its own prefix and deletes it afterwards. A ratio is the rate of the store divided by the
    rate of the other side.
    """
    measure_store(url, **options)


def measure_store(
    url: str | None,
    *,
    json_file: Path | None,
    markdown_file: Path | None,
    baseline_of: Callable[[str], Baseline | None] = lambda _: None,
    supplement: Callable[[Path], Supplement] | None = None,
    **plan: Any,
) -> None:
    """Run the benchmark and report it.

    `plan`: fields of `store_benchmark.Plan`. `supplement` measures more, in an empty folder on the disk of the store.
    """
    from hostler.entry.cli.progress import Ticker
    from hostler.entry.store_benchmark import Plan, run

    with tempfile.TemporaryDirectory(prefix="hostler-bench-", dir=_beside(url)) as folder:
        target = url or path_url("sqlite", Path(folder) / "bench.db")
        with Ticker() as ticker:
            rows = complete(run(Plan(target, **plan), ticker.tell, baseline_of(target)))
        fsync_us = _fdatasync_us(Path(folder))
        more = None if supplement is None else supplement(Path(folder))
    data = json.dumps(_plain(redacted(target), rows, more, fsync_us), indent=2)
    if json_file is not None and str(json_file) == "-":
        click.echo(data)
    else:
        _show(target, rows, more)
        click.echo(f"fdatasync on this disk, median: {fsync_us:.0f} µs")
        if json_file is not None:
            json_file.write_text(data + "\n", encoding="utf-8")
    if markdown_file is not None:
        markdown_file.write_text(_markdown(rows, more, fsync_us), encoding="utf-8")


def _beside(url: str | None) -> Path | None:
    """Return the folder of the store that is measured, so that both sides use the same disk."""
    path = local_path(url) if url else None
    return None if path is None or not path.parent.is_dir() else path.parent


def _show(url: str, rows: Sequence[Row], more: Supplement | None) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=redacted(url), title_justify="left")
    for number, head in enumerate(HEADS):
        table.add_column(head, justify="left" if number in (0, 6) else "right", no_wrap=True)
    for row in map(_cells, rows):
        table.add_row(*row)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    if more is not None:
        second = Table(title=more.title, title_justify="left", show_header=False)
        for name, value in more.pairs:
            second.add_row(name, value)
        console.print(second)


def _cells(row: Row) -> tuple[str, ...]:
    ours = (f"{row.ours.per_second:,.0f}", _time(row.ours.p50_us), _time(row.ours.p99_us), _time(row.ours.cpu_us))
    if row.other is None or row.ratio is None or row.cpu_ratio is None:
        return (row.name, str(row.clients), *ours, "", "", "", "", "", "")
    other = (f"{row.other.per_second:,.0f}", _time(row.other.p50_us), _time(row.other.cpu_us))
    return (row.name, str(row.clients), *ours, row.against, *other, f"{row.ratio:.2f}", f"{row.cpu_ratio:.2f}")


def _time(us: float) -> str:
    return f"{us:.0f} µs" if us < 1000 else f"{us / 1000:.1f} ms"


def _plain(url: str, rows: Sequence[Row], more: Supplement | None, fsync_us: float) -> dict[str, Any]:
    """Return everything as data for programs."""
    data: dict[str, Any] = {
        "store": url,
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()},
        "fdatasync_p50_us": fsync_us,
        "rows": [msgspec.to_builtins(row) | {"ratio": row.ratio, "cpu_ratio": row.cpu_ratio} for row in rows],
    }
    return data if more is None else data | {more.key: more.data}


def _markdown(rows: Sequence[Row], more: Supplement | None, fsync_us: float) -> str:
    """Return the tables in Markdown."""
    lines = [f"Median fdatasync of this disk during the run: {fsync_us:.0f} µs.", ""]
    lines += ["| " + " | ".join(HEADS) + " |", "|---|" + "--:|" * 5 + "---|" + "--:|" * 5]
    lines += ["| " + " | ".join(row) + " |" for row in map(_cells, rows)]
    if more is not None:
        lines += ["", f"| {more.title} | |", "|---|--:|"]
        lines += [f"| {name} | {value} |" for name, value in more.pairs]
    return "\n".join(lines) + "\n"


def _fdatasync_us(folder: Path) -> float:
    """Return the median time of 200 fdatasync calls of 4 KiB, in microseconds."""
    times = []
    with (folder / "fdatasync").open("wb", buffering=0) as file:
        file.write(bytes(4096))
        os.fsync(file.fileno())
        for _ in range(200):
            file.seek(0)
            started = perf_counter()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            times.append(perf_counter() - started)
    return statistics.median(times) * 1e6
