"""`hostler slice new` and `push`: the folder of a slice, created and published."""

from __future__ import annotations

import keyword
import re
import sys
import tempfile
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from hostler.entry.cli import show
from hostler.entry.cli.server_options import chosen_server, reached, server_options
from hostler.entry.cli.store_option import complete
from hostler.errors import Conflict, Invalid
from hostler.model.deployment import Artifact
from hostler.model.slice_api import ArtifactView

if TYPE_CHECKING:
    from hostler.entry.cli.server_options import Server
    from hostler.ports.artifacts import ArtifactInfo

FILES = {
    "pyproject.toml.txt": "pyproject.toml",
    "module.py.txt": "{module}.py",
    "test.py.txt": "test_{module}.py",
    "blueprint.toml.txt": "blueprint.toml",
    "README.md.txt": "README.md",
}
"""The templates, and the files they become."""
VERSION = "1.0.0"


@click.command()
@click.argument("name")
@click.option("--group", default="org.example", show_default=True, help="The group, for example com.example.shop.")
@click.option("--to", type=click.Path(path_type=Path), help="The folder to create.  [default: NAME]")
def new(name: str, group: str, to: Path | None) -> None:
    """Create a folder with the slice NAME: a module, its test, and instructions to run it."""
    made = make(name, group, to or Path(name))
    click.echo(f"created {made}: {', '.join(sorted(path.name for path in made.iterdir()))}")
    click.echo(f"next: cd {made}, then see README.md, or: hostler slice run . greet name=Ada")


def make(name: str, group: str, to: Path) -> Path:
    """Create the folder with its files. Invalid: the name is not allowed. Conflict: the folder is not empty."""
    module = _module(name)
    artifact = Artifact.parse(f"{group}:{name}:{VERSION}")
    words = {"NAME": name, "MODULE": module, "GROUP": group, "VERSION": VERSION, "BASE": artifact.base}
    texts = {
        file.format(module=module): _filled(template, words | {"ARTIFACT": str(artifact)})
        for template, file in FILES.items()
    }
    try:
        to.mkdir(parents=True, exist_ok=True)
        if any(to.iterdir()):
            raise Conflict(f"{to}: is not empty; name another folder with --to")
        for file, text in texts.items():
            (to / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise Invalid(f"{to}: cannot be created: {error.strerror}; name another folder with --to") from None
    return to


def _module(name: str) -> str:
    module = re.sub(r"[-.]", "_", name)
    if not re.fullmatch(r"[A-Za-z]([A-Za-z0-9._-]*[A-Za-z0-9])?", name) or not module.isidentifier():
        raise Invalid(f"slice {name!r}: must start with a letter; only letters, digits and . _ - are allowed")
    if keyword.iskeyword(module) or module in sys.stdlib_module_names or module in ("hostler", "pytest"):
        raise Invalid(f"slice {name!r}: {module} is a reserved or existing Python name; choose another name")
    return module


def _filled(template: str, words: dict[str, str]) -> str:
    text = (resources.files("hostler.entry.cli.slice") / "template" / template).read_text(encoding="utf-8")
    return re.sub(r"\{\{([A-Z]+)\}\}", lambda found: words[found[1]], text)


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
