"""`hostler demo`: a live tour of the store, on the embedded engine."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from pathlib import Path

import click

from hostler.entry.cli.plane_options import called
from hostler.entry.cli.store_option import complete, path_url


@click.command()
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="Keep the store in this folder.")
def demo(data: Path | None) -> None:
    """Show the store in action: put, watch, lease, transaction, history. Ten seconds, no input.

    Without --data the demo uses a temporary folder and deletes it afterwards.
    """
    from hostler.entry.demo import Show, perform

    if data is not None:
        data.mkdir(parents=True, exist_ok=True)
    temporary = tempfile.TemporaryDirectory(prefix="hostler-demo-") if data is None else nullcontext(str(data))
    with temporary as folder:
        url = path_url("sqlite", Path(folder) / "demo.db")
        complete(perform(url, Show()))
        _farewell(Path(folder), keep=data is not None)


def _farewell(folder: Path, *, keep: bool) -> None:
    me = called()
    place = str(folder.absolute()) if keep else "$HOME/hostler-demo"
    store = f"--store sqlite://{place}/demo.db"
    click.echo("\nYour turn:\n")
    click.echo(f"  {me} store put /labs/me hello {store}" if keep else f"  {me} demo --data ~/hostler-demo")
    click.echo(f"  {me} store list /labs/ {store}")
    click.echo(f"  {me} store watch /labs/ {store}")
    click.echo(f"\n`{me} --help` shows everything; docs/cli.md explains it.")
