"""Options that several of `hostler bench` have."""

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
    help="A folder of images that has `tiny`; without one, it is built.",
)
_json = click.option(
    "--json", "json_file", type=click.Path(path_type=Path, allow_dash=True), help="Write JSON; - is stdout."
)
_markdown = click.option(
    "--markdown", "markdown_file", type=click.Path(path_type=Path), help="Write the table as Markdown."
)


def report_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--json` and `--markdown`: where the report goes, too."""
    return _json(_markdown(command))


def parts_option(known: tuple[str, ...], *, sort: bool = False) -> Decorator:
    """`--parts`: some of the known ones, in the order they are named in; or (`sort`) in that of `known`."""

    def parts(_: click.Context, __: click.Parameter, text: str) -> tuple[str, ...]:
        found = tuple(part.strip() for part in text.split(","))
        if not all(part in known for part in found):
            raise click.BadParameter(f"{text!r}: give some of {','.join(known)}")
        return tuple(part for part in known if part in found) if sort else found

    return click.option("--parts", callback=parts, default=",".join(known), show_default=True, help="What to measure.")
