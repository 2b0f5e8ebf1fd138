"""The rows of most benchmarks, and their report: the table on the terminal, and the JSON and Markdown files."""

from __future__ import annotations

import json
import os
import platform
import sys
from typing import TYPE_CHECKING, Any

import click
import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

HEADS = ("what", "found", "wanted", "reached", "against", "found", "ratio", "by CPU")
_DIGITS = 100


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One figure. Without `wanted` it has no target."""

    what: str
    found: float
    unit: str
    wanted: float | None = None
    at_most: bool = False
    """`wanted` is an upper limit, not a lower limit."""
    against: str = ""
    other: float | None = None
    """The figure of the bare engine or framework, in alternating rounds of this run."""
    ratio: float | None = None
    """Our figure divided by the other side's."""
    cpu_ratio: float | None = None
    """The same ratio for equal processor time."""

    @property
    def reached(self) -> bool | None:
        """Return whether the target was reached; None: there is no target."""
        if self.wanted is None:
            return None
        return self.found <= self.wanted if self.at_most else self.found >= self.wanted


def cells(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Return the rows as text."""
    return [
        (
            row.what,
            f"{_number(row.found)} {row.unit}".rstrip(),
            "" if row.wanted is None else f"{'≤' if row.at_most else '≥'} {_number(row.wanted)}",
            {None: "", True: "yes", False: "NO"}[row.reached],
            row.against,
            "" if row.other is None else _number(row.other),
            "" if row.ratio is None else f"{row.ratio:.2f}",
            "" if row.cpu_ratio is None else f"{row.cpu_ratio:.2f}",
        )
        for row in rows
    ]


def markdown(rows: Sequence[Row]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(HEADS) + " |", "|---|--:|--:|---|---|--:|--:|--:|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in cells(rows))]) + "\n"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= _DIGITS or value == int(value) else f"{value:.2f}"


def report(title: str, rows: list[Row], json_file: Path | None, markdown_file: Path | None, **more: Any) -> None:
    """Print the table and write the requested files. `more` is added to the description of the measured machine."""
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

    table = Table(title=title, title_justify="left")
    for number, head in enumerate(HEADS):
        table.add_column(head, justify="left" if number in (0, 3, 4) else "right", no_wrap=True)
    for row in cells(rows):
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
