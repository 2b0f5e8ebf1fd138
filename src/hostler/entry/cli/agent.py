"""`hostler agent`."""

from __future__ import annotations

from typing import Any

import click

from hostler.entry.cli.failure import tell
from hostler.entry.cli.plane_options import (
    AGENT_LISTEN,
    CERT,
    DATA,
    FENCING,
    FORMAT,
    KEY,
    LEVEL,
    NODE_TTL,
    STORE,
    accept_cluster_option,
    flags,
    insecure_option,
    machines_option,
)
from hostler.entry.cli.store_option import complete
from hostler.entry.cli.value import accelerators
from hostler.model.node_label import advertised


@click.command()
@click.option("--node", metavar="NAME", help="The name of the node: {rack}-{blade}.  [env: HOSTLER_NODE]")
@click.option("--rack", metavar="NAME", help="The rack of the node.")
@click.option("-l", "--label", "labels", multiple=True, metavar="NAME=VALUE", help="A label of the node.")
@click.option("--accelerator", multiple=True, metavar="KIND=N", help="The node has N accelerators of this kind.")
@click.option("--volume", multiple=True, metavar="NAME", help="The node has a volume of this name.")
@machines_option
@flags((STORE, DATA, AGENT_LISTEN, CERT, KEY, NODE_TTL, FENCING, LEVEL, FORMAT))
@insecure_option
@accept_cluster_option
def agent(
    labels: tuple[str, ...],
    *,
    accelerator: tuple[str, ...],
    volume: tuple[str, ...],
    accept_cluster: bool,
    **given: Any,
) -> None:
    """Run the agent of one node until Ctrl-C or SIGTERM. Its machines keep running after it ends.

    The agent carries out the commands of the leader. --store names the store that the replicas use, for example
    etcd://HOST:PORT. The agent keeps its machines in DATA/machines/NODE.
    """
    import sys

    from hostler.entry.agent import run
    from hostler.entry.server.logs import configure
    from hostler.settings import load

    has = advertised("", accelerators(accelerator), volume)
    if has:
        labels = (*labels, *(f"{name}={value}" for name, value in has.items()))
    settings = load({**given, "labels": labels or None})
    configure(settings.log_level, sys.stderr, settings.log_format)
    code = complete(run(settings, tell, accept_cluster=accept_cluster))
    click.get_current_context().exit(code)
