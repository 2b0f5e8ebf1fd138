"""`hostler labs worker`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from hostler.entry.cli.failure import one_line
from hostler.entry.cli.plane_options import DATA, FORMAT, LABS, LEVEL, REDIS, STORE, flags
from hostler.entry.cli.store_option import complete


@click.command()
@flags((REDIS, STORE, DATA, LABS, LEVEL, FORMAT))
def worker(**given: Any) -> None:
    """Take requests for labs from Redis until Ctrl-C or SIGTERM, and write down what is wished for.

    hostler up and hostler replica do that as well when they have a --redis; more workers are for more requests, and on
    more machines. Name the store that those work on: --store etcd://HOST:PORT. It prints `ready` once it takes.
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
