"""Reports of most `hostler bench` commands: the table on the terminal, and the JSON and Markdown files."""

from __future__ import annotations

import json
import os
import platform
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pathlib import Path

    from hostler.entry.bench.plane_row import Row


def report(title: str, rows: list[Row], json_file: Path | None, markdown_file: Path | None, **more: Any) -> None:
    """Print the table and write the requested files. `more` is added to the description of the measured machine."""
    import msgspec

    from hostler.entry.bench.plane_row import markdown

    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform(), **more}
    plain = [msgspec.to_builtins(row) | {"reached": row.reached} for row in rows]
    data = json.dumps({"machine": machine, "rows": plain}, indent=2)
    if json_file is not None and str(json_file) == "-":
        click.echo(data)
    else:
        _show(title, rows)
        for name, value in more.items():
            click.echo(f"{name}: {value}")
        if json_file is not None:
            json_file.write_text(data + "\n", encoding="utf-8")
    if markdown_file is not None:
        markdown_file.write_text(markdown(rows), encoding="utf-8")


def _show(title: str, rows: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    from hostler.entry.bench.plane_row import HEADS, cells

    table = Table(title=title, title_justify="left")
    for number, head in enumerate(HEADS):
        table.add_column(head, justify="left" if number in (0, 3, 4) else "right", no_wrap=True)
    for row in cells(rows):
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
