"""`hostler labs`: processes that serve labs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from hostler.entry.cli.app import LazyGroup
from hostler.entry.cli.failure import one_line
from hostler.entry.cli.plane_options import DATA, FORMAT, LABS, LEVEL, REDIS, STORE, flags
from hostler.entry.cli.store_option import complete

COMMANDS = {"worker": (__name__, "worker", "Take lab requests from Redis.")}


@click.group(cls=LazyGroup, commands_at=COMMANDS)
def labs() -> None:
    """Run processes that serve labs. To use labs, see hostler lab."""


@click.command()
@flags((REDIS, STORE, DATA, LABS, LEVEL, FORMAT))
def worker(**given: Any) -> None:
    """Take lab requests from Redis and write them to the store, until Ctrl-C or SIGTERM.

    hostler up and hostler replica do the same if they have a --redis; additional workers add throughput, also on other
    machines. --store names the store that the replicas use, for example etcd://HOST:PORT. Prints `ready` when it takes
    requests.
    """
    import sys

    from hostler.entry.lab_worker import run
    from hostler.entry.server.logs import configure
    from hostler.settings import load

    settings = load(given)
    configure(settings.log_level, sys.stderr, settings.log_format)
    click.get_current_context().exit(complete(run(settings, _tell)))


def _tell(text: str) -> None:
    line = text if text == "ready" else f"{datetime.now().astimezone():%H:%M:%S} {one_line(text)}"
    click.echo(line)
