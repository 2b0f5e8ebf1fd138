"""`hostler slice new`: a folder with a slice that works."""

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
"""The templates, and what they become."""
VERSION = "1.0.0"


@click.command()
@click.argument("name")
@click.option("--group", default="org.example", show_default=True, help="Whose it is, such as com.example.shop.")
@click.option("--to", type=click.Path(path_type=Path), help="The folder to make; otherwise NAME.")
def new(name: str, group: str, to: Path | None) -> None:
    """Make a folder with the slice NAME in it: a module, its test, and how to run it."""
    made = make(name, group, to or Path(name))
    click.echo(f"made {made}: {', '.join(sorted(path.name for path in made.iterdir()))}")
    click.echo(f"next: cd {made}, then see README.md, or: hostler slice run . greet name=Ada")


def make(name: str, group: str, to: Path) -> Path:
    """The folder, with all that is in it. Invalid: it cannot be called so. Conflict: there is something already."""
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
            raise Conflict(f"{to}: there is something in it already; name another folder with --to")
        for file, text in texts.items():
            (to / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise Invalid(f"{to}: cannot be made: {error.strerror}; name another folder with --to") from None
    return to


def _module(name: str) -> str:
    module = re.sub(r"[-.]", "_", name)
    if not re.fullmatch(r"[A-Za-z]([A-Za-z0-9._-]*[A-Za-z0-9])?", name) or not module.isidentifier():
        raise Invalid(f"slice {name!r}: letters, digits and . _ - only, a letter first")
    if keyword.iskeyword(module) or module in sys.stdlib_module_names or module in ("hostler", "pytest"):
        raise Invalid(f"slice {name!r}: Python itself has a {module}; choose another name")
    return module


def _filled(template: str, words: dict[str, str]) -> str:
    text = (resources.files("hostler.entry.cli.slice") / "template" / template).read_text(encoding="utf-8")
    return re.sub(r"\{\{([A-Z]+)\}\}", lambda found: words[found[1]], text)
