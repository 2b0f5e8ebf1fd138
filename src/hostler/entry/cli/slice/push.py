"""`hostler slice push`: pack and publish a slice."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from hostler.entry.cli import show
from hostler.entry.cli.server_options import chosen_server, reached, server_options
from hostler.entry.cli.store_option import complete
from hostler.model.artifact_api import ArtifactView

if TYPE_CHECKING:
    from hostler.entry.cli.server_options import Server
    from hostler.ports.artifacts import ArtifactInfo


@click.command()
@click.argument("path", type=click.Path(path_type=Path), default=Path())
@click.option("--group", help="The group.  [default: [tool.hostler] group in pyproject.toml]")
@click.option("--version", help="The version.  [default: as in pyproject.toml, or __version__ of a module]")
@click.option(
    "--to",
    type=click.Path(file_okay=False, path_type=Path),
    help="Publish into this folder, for example of a web server, instead of a Hostler server.",
)
@show.output_option
@server_options
def push(path: Path, group: str | None, version: str | None, to: Path | None, output: str) -> None:
    """Publish PATH: a folder with pyproject.toml (default: the current folder), a wheel, or a module.

    A folder is packed into a wheel locally; the same content gives the same wheel, byte for byte. Publishing the same
    file again is allowed. A different file under the same name and version is refused.
    """
    server = chosen_server() if to is None else None
    with tempfile.TemporaryDirectory(prefix="hostler-slice-") as place:
        from hostler.wiring import pack_artifact

        info, file = pack_artifact(path.resolve(), Path(place), group=group, version=version)
        view = complete(_published(server, to, info, file))
    if output != "table":
        show.emit(msgspec.to_builtins(view), output)
        return
    click.echo(f"published {view.artifact} ({view.file}, {view.size} bytes, sha256 {view.sha256[:12]}…)")
    if view.requires:
        click.echo(f"requires {', '.join(view.requires)}: nodes get these from slice_packages")


async def _published(server: Server | None, to: Path | None, info: ArtifactInfo, file: Path) -> ArtifactView:
    if server is not None:
        async with reached(server) as client:
            return await client.artifacts.publish(info.artifact, file, name=info.file)
    from hostler.settings import load
    from hostler.wiring import open_artifacts

    flags: dict[str, Any] = {"artifacts": str(to)}
    return ArtifactView(**msgspec.structs.asdict(await open_artifacts(load(flags)).publish(info, file)))
