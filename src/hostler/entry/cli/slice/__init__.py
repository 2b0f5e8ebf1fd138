"""`hostler slice`: write slices, publish them, and see what runs of them."""

from __future__ import annotations

import click

from hostler.entry.cli.app import LazyGroup

COMMANDS = {
    "new": ("hostler.entry.cli.slice.new", "new", "Make a folder with a slice that works, and its test."),
    "run": ("hostler.entry.cli.slice.run", "run", "Run a slice here, alone, and call it."),
    "push": ("hostler.entry.cli.slice.push", "push", "Pack a slice, and publish it."),
    "artifacts": ("hostler.entry.cli.slice.read", "artifacts", "Show what is published."),
    "list": ("hostler.entry.cli.slice.read", "list_", "Show what runs, and where."),
    "logs": ("hostler.entry.cli.slice.logs", "logs", "Show what instances printed."),
}


@click.group("slice", cls=LazyGroup, commands_at=COMMANDS)
def slice_() -> None:
    """Write slices, publish them, and see what runs: Python code whose methods can be called from everywhere.

    \b
    hostler slice new greeting --group org.example
    cd greeting
    hostler slice run . greet name=Ada
    hostler slice push
    hostler blueprint apply blueprint.toml --name greeting --yes --wait
    hostler slice list
    """
