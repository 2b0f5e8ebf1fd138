"""`hostler down`."""

from __future__ import annotations

from pathlib import Path

import click

from hostler.errors import NotFound


@click.command()
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="The data folder of the hostler up.")
def down(data: Path | None) -> None:
    """End the hostler up of a data folder, and wait until it has. Its machines run on, and the next up finds them."""
    from hostler.entry.detach import ended
    from hostler.entry.folder import DataFolder
    from hostler.settings import load

    folder = DataFolder(load({"data": data}).data)
    if not ended(folder):
        raise NotFound(f"data folder {folder.path}: no hostler up runs there; name its folder with --data")
    click.echo("ended; the machines run on")
