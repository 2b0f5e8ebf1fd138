"""Options that several `python -m bench` commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

images_option = click.option(
    "--images",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="A folder of images that contains `tiny`. Default: build it.",
)
_json = click.option(
    "--json", "json_file", type=click.Path(path_type=Path, allow_dash=True), help="Write JSON; - is stdout."
)
_markdown = click.option(
    "--markdown", "markdown_file", type=click.Path(path_type=Path), help="Write the table as Markdown."
)


def report_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--json` and `--markdown`: files that also get the report."""
    return _json(_markdown(command))


def parts_option(known: tuple[str, ...], *, sort: bool = False) -> Decorator:
    """Add `--parts`: a selection of `known`, in the given order, or in the order of `known` if `sort` is set."""

    def parts(_: click.Context, __: click.Parameter, text: str) -> tuple[str, ...]:
        found = tuple(part.strip() for part in text.split(","))
        if not all(part in known for part in found):
            raise click.BadParameter(f"{text!r}: give some of {','.join(known)}")
        return tuple(part for part in known if part in found) if sort else found

    return click.option("--parts", callback=parts, default=",".join(known), show_default=True, help="What to measure.")
