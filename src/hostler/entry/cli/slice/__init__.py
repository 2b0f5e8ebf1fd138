"""`hostler slice`: write and publish slices, and show their instances."""

from __future__ import annotations

import click

from hostler.entry.cli.app import LazyGroup

COMMANDS = {
    "new": ("hostler.entry.cli.slice.project", "new", "Create a folder with a working slice and its test."),
    "run": ("hostler.entry.cli.slice.project", "run", "Run a slice locally, and call it."),
    "push": ("hostler.entry.cli.slice.project", "push", "Pack and publish a slice."),
    "artifacts": ("hostler.entry.cli.slice.read", "artifacts", "List the published artifacts."),
    "list": ("hostler.entry.cli.slice.read", "list_", "List the instances and their nodes."),
    "logs": ("hostler.entry.cli.slice.read", "logs", "Show the output of instances."),
}


@click.group("slice", cls=LazyGroup, commands_at=COMMANDS)
def slice_() -> None:
    """Write and publish slices, and show their instances. A slice is Python code with remotely callable methods.

    \b
    hostler slice new greeting --group org.example
    cd greeting
    hostler slice run . greet name=Ada
    hostler slice push
    hostler blueprint apply blueprint.toml --name greeting --yes --wait
    hostler slice list
    """
