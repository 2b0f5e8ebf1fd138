"""`hostler slice new`: create a folder with a working slice."""

from __future__ import annotations

import keyword
import re
import sys
from importlib import resources
from pathlib import Path

import click

from hostler.errors import Conflict, Invalid
from hostler.model.deployment import Artifact

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
