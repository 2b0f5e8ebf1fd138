"""`hostler down`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hostler.errors import HostlerError, NotFound

if TYPE_CHECKING:
    from hostler.entry.data_dir import DataFolder

ANSWERS_WITHIN = 3.0


@click.command()
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="The data folder of hostler up.")
def down(data: Path | None) -> None:
    """Stop the hostler up of a data folder, and wait until it has ended.

    Machines keep running, and the next hostler up finds them. Slices stop, and the next hostler up starts them again.
    """
    from hostler.entry.data_dir import DataFolder
    from hostler.entry.detach import ended
    from hostler.settings import load

    folder = DataFolder(load({"data": data}).data)
    there = asyncio.run(_has_machines(folder)) if folder.holder() else False
    if not ended(folder):
        raise NotFound(f"data folder {folder.path}: no hostler up runs there; name its folder with --data")
    click.echo("ended; the machines run on" if there else "ended")


async def _has_machines(folder: DataFolder) -> bool:
    """Return whether the server has machines. True if the server does not answer, because it may have some."""
    from hostler.client import Client

    url, token = folder.read(folder.server_file), folder.read(folder.token_file)
    if not url or not token:
        return True
    try:
        async with asyncio.timeout(ANSWERS_WITHIN), Client(url, token.strip(), insecure=True) as client:
            return bool((await client.vms.rows(limit=1, stale=True)).items)
    except (HostlerError, TimeoutError):
        return True
