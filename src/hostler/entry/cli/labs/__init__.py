"""`hostler labs`: processes that serve labs."""

from __future__ import annotations

import click

from hostler.entry.cli.app import LazyGroup

COMMANDS = {"worker": ("hostler.entry.cli.labs.worker", "worker", "Take lab requests from Redis.")}


@click.group(cls=LazyGroup, commands_at=COMMANDS)
def labs() -> None:
    """Run processes that serve labs. To use labs, see hostler lab."""
